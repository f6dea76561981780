package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestFenced: who leads by a Lease has clients that write nothing once it has run out. The
// clients are made before there is a term, so the term cannot see to it.
func TestFenced(t *testing.T) {
	led := 0
	for _, p := range tree(t) {
		calls := map[string]bool{}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "leader" {
						calls[s.Sel.Name] = true
					}
				}
				return true
			})
		}
		if !calls["Run"] {
			continue
		}
		led++
		if !calls["Fenced"] {
			t.Errorf("%s leads by a Lease, with clients that go on writing when it has run out: make them of leader.Fenced", p.name())
		}
	}
	if led == 0 {
		t.Error("nothing leads by leader.Run")
	}
}
