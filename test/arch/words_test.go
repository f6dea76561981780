package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// metaphors are words that say nothing to somebody who knows Kubernetes and looks
// for its own words: timeout, backoff, seat, lease, admission.
var metaphors = []string{
	"begun", "cork", "crowd", "dear", "door", "enlist", "grind", "knock", "lens", "masters",
	"patience", "recruit", "refract", "said", "strangers", "strikes", "tellings", "told",
	"turns", "unkept", "unmade", "untold", "welcome",
}

// riddles are phrases of comments in whose place a standard noun says it.
var riddles = []string{
	"who asks", "believing nobody", "nobody wrote or can read", "strangers",
	"lest ", "dear requests", "no update may do otherwise", "worth the keys of",
}

// TestWords: an identifier, a file's name or a comment is in the field's words.
func TestWords(t *testing.T) {
	for _, f := range sources(t) {
		for _, w := range words(stem(filepath.Base(f.name))) {
			if slices.Contains(metaphors, w) {
				t.Errorf("%s: %q in the file's name; use the field's word", f.name, w)
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if fn, ok := n.(*ast.FuncDecl); ok && fn.Recv != nil {
				for _, w := range words(fn.Name.Name) {
					if slices.Contains(metaphors, w) {
						t.Errorf("%s: %q in %s; use the field's word", f.at(fn), w, fn.Name.Name)
					}
				}
			}
			id, ok := n.(*ast.Ident)
			if !ok || id.Obj == nil || id.Obj.Pos() != id.Pos() {
				return true // a use, or another package's name
			}
			for _, w := range words(id.Name) {
				if slices.Contains(metaphors, w) {
					t.Errorf("%s: %q in %s; use the field's word", f.at(id), w, id.Name)
				}
			}
			return true
		})
		for _, group := range f.syntax.Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, r := range riddles {
				if strings.Contains(text, r) {
					t.Errorf("%s: %q in a comment; say it with a standard noun", f.at(group), r)
				}
			}
		}
	}
}

// words are the parts of a name in lower case: fooBar_HTTPBaz is foo, bar, http
// and baz.
func words(name string) (all []string) {
	rs := []rune(name)
	from := 0
	cut := func(to int) {
		if to > from {
			all = append(all, strings.ToLower(string(rs[from:to])))
		}
	}
	for i, r := range rs {
		switch {
		case r == '_':
			cut(i)
			from = i + 1
		case i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])):
			cut(i)
			from = i
		}
	}
	cut(len(rs))
	return all
}

func TestWordsOfNames(t *testing.T) {
	for name, want := range map[string]string{
		"maxPatience": "max patience", "HTTPServer": "http server", "told_test": "told test", "x": "x", "toldCA": "told ca",
	} {
		if got := strings.Join(words(name), " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// maxFunction is how many lines a function may have, tests too.
const maxFunction = 100

// TestFunctions: a function is short enough to be read at once.
func TestFunctions(t *testing.T) {
	for _, f := range sources(t) {
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1; n > maxFunction {
				t.Errorf("%s: %s has %d lines; %d are the most", f.at(fn), fn.Name.Name, n, maxFunction)
			}
		}
	}
}

// A source is one Go file of the repository, of its other modules too.
type source struct {
	name   string // seen from the repository's root
	set    *token.FileSet
	syntax *ast.File
}

func (s source) at(n ast.Node) string {
	p := s.set.Position(n.Pos())
	p.Filename = s.name
	return p.String()
}

// sources are all Go files but those that a test reads or the build makes.
func sources(t *testing.T) (all []source) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != root && (name == "testdata" || name == "build" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if e.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all = append(all, source{filepath.ToSlash(name), set, file})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 1000 {
		t.Fatalf("only %d files found", len(all))
	}
	return all
}
