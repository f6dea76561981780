package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// programsOfTheirOwn hold no cluster: a panic ends nobody else.
var programsOfTheirOwn = []string{"node/cni/plugin", "internal/holder/program", "internal/programs/pack", "kubectl", "test",
	"controlplane/apiserver/storage/storagetest"} // a test that other packages run

// TestGoroutines: internal/run starts every goroutine of the product, so that
// each recovers. A Group's Go takes a name and a function, which tells it from
// those of sync and errgroup.
func TestGoroutines(t *testing.T) {
	for _, p := range tree(t) {
		if within(p.name(), "internal/run") || withinAny(p.name(), programsOfTheirOwn) {
			continue
		}
		for _, f := range p.files() {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range bareGoroutines(file) {
				at := set.Position(n.Pos())
				t.Errorf("%s/%s:%d starts a goroutine that does not recover; internal/run has those that do", p.name(), filepath.Base(f), at.Line)
			}
		}
	}
}

func withinAny(name string, folders []string) bool {
	for _, f := range folders {
		if within(name, f) {
			return true
		}
	}
	return false
}

// bareGoroutines are the places of a file where a goroutine begins that nothing
// recovers.
func bareGoroutines(file *ast.File) (found []ast.Node) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, n)
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			pkg, _ := sel.X.(*ast.Ident)
			switch {
			case sel.Sel.Name == "Go" && len(n.Args) == 1:
				found = append(found, n)
			case sel.Sel.Name == "AfterFunc" && pkg != nil && pkg.Name == "time":
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// TestBareGoroutines holds the rule to examples.
func TestBareGoroutines(t *testing.T) {
	for text, want := range map[string]int{
		"go f()":                                1,
		"go func() {}()":                        1,
		"wg.Go(func() {})":                      1,
		"time.AfterFunc(d, f)":                  1,
		`run.Go("name", f)`:                     0,
		`group.Go("name", f)`:                   0,
		`run.AfterFunc("name", d, f)`:           0,
		"defer context.AfterFunc(ctx, close)()": 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", strings.Join([]string{"package x", "func x() {", text, "}"}, "\n"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(bareGoroutines(file)); got != want {
			t.Errorf("%s: %d goroutines that do not recover, want %d", text, got, want)
		}
	}
}

// TestIndexes: internal/informer adds every index of a cache, so that a panic or an error
// in what finds its keys concerns one object.
func TestIndexes(t *testing.T) {
	for _, p := range tree(t) {
		if within(p.name(), "internal/informer") || withinAny(p.name(), programsOfTheirOwn) {
			continue
		}
		for _, f := range p.files() {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "AddIndexers" {
					t.Errorf("%s/%s:%d adds an index that nothing guards; informer.Index does", p.name(), filepath.Base(f), set.Position(n.Pos()).Line)
				}
				return true
			})
		}
	}
}

// TestCollectors: the client library of Prometheus calls collectors in goroutines of its own,
// where a panic ends the process: each recovers first of all.
func TestCollectors(t *testing.T) {
	for _, p := range tree(t) {
		if withinAny(p.name(), programsOfTheirOwn) {
			continue
		}
		for _, f := range p.files() {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if ok && fn.Name.Name == "Collect" && fn.Recv != nil && collects(fn) && !recoversFirst(fn) {
					t.Errorf("%s/%s:%d collects metrics without defer run.Recover at its beginning", p.name(), filepath.Base(f), set.Position(fn.Pos()).Line)
				}
			}
		}
	}
}

// collects says whether a method has the one parameter of a Collector's, a channel.
func collects(fn *ast.FuncDecl) bool {
	if len(fn.Type.Params.List) != 1 {
		return false
	}
	_, ok := fn.Type.Params.List[0].Type.(*ast.ChanType)
	return ok
}

func recoversFirst(fn *ast.FuncDecl) bool {
	if len(fn.Body.List) == 0 {
		return false
	}
	d, ok := fn.Body.List[0].(*ast.DeferStmt)
	if !ok {
		return false
	}
	sel, ok := d.Call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Recover"
}
