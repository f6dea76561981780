// Package arch holds the tree to its own rules. It reads the whole repository
// and writes nothing, except deps.txt with -update.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// root is where the repository is, seen from here.
const root = "../.."

// module is what all import paths of the tree start with.
const module = "knarr/"

// A pkg is what `go list` says about a package.
type pkg struct {
	ImportPath, Dir                    string
	Module                             *struct{ Path, Version string }
	Imports, TestImports, XTestImports []string
	GoFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles                     []string
	Deps                               []string
}

// name is the package's folder in the tree.
func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module) }

// files are all its Go files, tests too.
func (p pkg) files() (all []string) {
	for _, list := range [][]string{p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles} {
		for _, f := range list {
			all = append(all, filepath.Join(p.Dir, f))
		}
	}
	return all
}

func list(args ...string) (pkgs []pkg, err error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Module,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles,Deps"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as bin/knarr is built
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, errors.New(string(exit.Stderr))
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

var listTree = sync.OnceValues(func() ([]pkg, error) { return list("./...") })

// tree is every package of the repository.
func tree(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := listTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 20 {
		t.Fatalf("only %d packages found", len(pkgs))
	}
	return pkgs
}
