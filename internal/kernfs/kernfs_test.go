package kernfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReader: numbers, max, and tables with lines that have none; a long file no further than
// asked for, and a file that is not there is nothing.
func TestReader(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r := NewReader()
	for content, want := range map[string]uint64{"42\n": 42, "max\n": 1<<64 - 1, "-1\n": 0, "": 0} {
		if n, ok := r.Number(write("number", content)); n != want || ok != (want != 0) {
			t.Errorf("%q is %d, %v", content, n, ok)
		}
	}
	sum := map[string]uint64{}
	if !r.Table(write("table", "user 3\nsystem 4 5\nhalf\n\nname x\nlast 9"), func(key []byte, v uint64) { sum[string(key)] += v }) {
		t.Error("the table cannot be read")
	}
	if len(sum) != 3 || sum["user"] != 3 || sum["system"] != 4 || sum["last"] != 9 {
		t.Errorf("the table has %v", sum)
	}
	if r.Table(filepath.Join(dir, "none"), nil) || r.Value(filepath.Join(dir, "none")) != 0 {
		t.Error("what is not there was read")
	}
	long := write("long", strings.Repeat("x", 3*Small))
	if got := len(r.File(long, 2*Small+1)); got != 2*Small+1 {
		t.Errorf("%d bytes of a long file", got)
	}
	path := write("number", "7\n")
	if n := testing.AllocsPerRun(10, func() { r.Value(path) }); n > 1 { // the path, for the kernel
		t.Errorf("a file of a number allocates %v times", n)
	}
}
