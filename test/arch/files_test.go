package arch

import (
	"bytes"
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackageComments: one per folder, which says what it reads and writes.
func TestPackageComments(t *testing.T) {
	for _, p := range tree(t) {
		var with []string
		for _, f := range p.files() {
			file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Error(err)
				continue
			}
			if file.Doc != nil {
				with = append(with, filepath.Base(f))
			}
		}
		if len(with) != 1 {
			t.Errorf("%s: %d package comments, want one: %s", p.name(), len(with), strings.Join(with, " "))
		}
	}
}

// vague are the names of files that say nothing of what is in them.
var vague = []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}

// TestFiles: no file is too long to read, or named for nothing.
func TestFiles(t *testing.T) {
	for _, p := range tree(t) {
		for _, f := range p.files() {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(b, []byte("\n")); n > 800 && !generated(b) {
				t.Errorf("%s/%s has %d lines; 800 are the most", p.name(), filepath.Base(f), n)
			}
			if slices.Contains(vague, stem(filepath.Base(f))) {
				t.Errorf("%s/%s: name it for the thing in it", p.name(), filepath.Base(f))
			}
		}
		if slices.Contains(vague, filepath.Base(p.name())) {
			t.Errorf("%s: name the folder for the thing in it", p.name())
		}
	}
}

// stem is a file's name without what Go makes of its end.
func stem(name string) string {
	name = strings.TrimSuffix(name, ".go")
	for _, end := range []string{"_test", "_linux", "_other"} {
		name = strings.TrimSuffix(name, end)
	}
	return name
}

func generated(b []byte) bool {
	head, _, _ := bytes.Cut(b, []byte("\npackage "))
	return bytes.Contains(head, []byte("// Code generated ")) && bytes.Contains(head, []byte("DO NOT EDIT."))
}

// TestInit: tables say what there is; nothing registers itself.
func TestInit(t *testing.T) {
	for _, p := range tree(t) {
		if p.name() == "node/containerruntime/shim/program" {
			continue // it becomes a container before main, while its goroutine has the first thread
		}
		for _, f := range p.files() {
			if b, err := os.ReadFile(f); err != nil {
				t.Fatal(err)
			} else if bytes.Contains(b, []byte("\nfunc init() {")) {
				t.Errorf("%s/%s has an init function", p.name(), filepath.Base(f))
			}
		}
	}
}

// innerRooms are those that an arrow of the picture enters, besides the components.
var innerRooms = []string{
	"cluster", "controlplane/apiserver/endpoints", "controlplane/apiserver/watchcache", "controlplane/apiserver/admission",
	"controlplane/apiserver/storage", "controlplane/apiserver/extension",
}

// TestRooms: every component is described where it lives.
func TestRooms(t *testing.T) {
	for _, c := range slices.Concat(components, innerRooms) {
		dir := filepath.Join(root, c)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && slices.Contains(components, c) || c == "kubectl" {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil {
			t.Error(err)
		} else if !bytes.Contains(b, []byte("```\n")) {
			t.Errorf("%s/README.md has no diagram", c)
		}
	}
}
