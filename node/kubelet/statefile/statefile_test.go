package statefile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, want := range []string{"one", "two"} {
		if err := Write(path, want, want == "two"); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := Read(path, &got); err != nil || got != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := os.Stat(path + TmpSuffix); !os.IsNotExist(err) {
		t.Errorf("the temporary file is still there: %v", err)
	}
	var any any
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &any); err == nil {
		t.Error("a file of a terabyte was read")
	}
}
