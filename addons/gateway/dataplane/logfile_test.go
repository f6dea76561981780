package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log takes no more than its bound of a disk, and no line is lost or cut when a new file
// begins.
func TestLogFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	l := &logFile{path: path, most: 100}
	for i := range 100 {
		if _, err := fmt.Fprintf(l, "line %2d of the access log\n", i); err != nil { // 26 bytes
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var all string
	for _, name := range []string{".3", ".2", ".1", ""} {
		b, err := os.ReadFile(path + name)
		if err != nil || len(b) > 100 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		all += string(b)
	}
	lines := strings.Split(strings.TrimSuffix(all, "\n"), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("line %2d of the access log", 100-len(lines)+i); line != want {
			t.Errorf("%q, want %q", line, want)
		}
	}
	found, err := os.ReadDir(dir)
	if err != nil || len(found) != 4 {
		t.Errorf("%d files, %v", len(found), err)
	}
	// A later process goes on where this one has ended.
	again, err := OpenLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Write([]byte("more\n")); err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	if b, _ := os.ReadFile(path); !strings.HasSuffix(string(b), "log\nmore\n") {
		t.Errorf("%q", b)
	}
}

// What is no file is not written to.
func TestLogFileRefuses(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, filepath.Join(dir, "none", "log")} {
		if _, err := OpenLog(path); err == nil {
			t.Errorf("%s is opened", path)
		}
	}
	for text, want := range map[string]string{"json:/var/log/a": "json /var/log/a", "common:stdout": "common stdout", "xml:/a": "", "json:a": "", "json": "", "": ""} {
		format, path, err := ParseAccessLog(text)
		if got := strings.TrimSpace(format + " " + path); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
