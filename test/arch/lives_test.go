package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The lives are pages whose numbered steps name files, and after each file the
// functions, types and variables of it, all before the step's first colon.
var lives = []string{"docs/life-of-a-request.md", "docs/life-of-a-pod.md"}

var (
	step   = regexp.MustCompile(`^\d+\. ([^:]*):`)
	goName = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)?$`)
)

// TestLives: what a life names is declared where it says so, and within a section
// each name is used by one above it, in the order in which that one uses them.
// A section is for what happens in one goroutine; the first name needs no caller.
func TestLives(t *testing.T) {
	for _, p := range pagesOf(t) {
		if !slices.Contains(lives, p.name) {
			continue
		}
		count := 0
		var names section
		for _, l := range p.lines {
			if strings.HasPrefix(l.text, "#") {
				names = section{}
			}
			m := step.FindStringSubmatch(l.text)
			if m == nil || l.fenced {
				continue
			}
			file := ""
			for _, q := range quoted.FindAllStringSubmatch(m[1], -1) {
				switch name := q[1]; {
				case strings.HasSuffix(name, ".go"):
					file = l.resolve(path.Dir(p.name), name)
				case !goName.MatchString(name):
					t.Errorf("%s:%d: %s is neither a file nor a name; say it after the colon", p.name, l.number, name)
				case file == "":
					t.Errorf("%s:%d: %s comes after no file that is there", p.name, l.number, name)
				default:
					count++
					if err := names.add(file, name); err != nil {
						t.Errorf("%s:%d: %v", p.name, l.number, err)
					}
				}
			}
		}
		if count < 20 {
			t.Errorf("%s: only %d names found in its steps", p.name, count)
		}
	}
}

// A section is the names of one section of a life so far.
type section struct {
	all []sectionName
}

type sectionName struct {
	name string
	uses []string // the identifiers in its declaration, in order
	from int      // of uses: where the last name that it uses was found
}

// add is the next name of the section.
func (s *section) add(file, name string) error {
	if err := declares(file, name); err != nil {
		return err
	}
	d := declarations(file)[name]
	own := ownName(name)
	var late string
	found := len(s.all) == 0
	for i := len(s.all) - 1; i >= 0 && !found; i-- {
		by := &s.all[i]
		at := slices.Index(by.uses[by.from:], own)
		if at >= 0 {
			by.from += at
			found = true
		} else if late == "" && slices.Contains(by.uses, own) {
			late = by.name
		}
	}
	s.all = append(s.all, sectionName{name: name, uses: d.uses})
	switch {
	case found:
		return nil
	case late != "":
		return fmt.Errorf("%s uses %s before what is above it of %s", late, name, late)
	}
	var above []string
	for _, by := range s.all[:len(s.all)-1] {
		above = append(above, by.name)
	}
	return fmt.Errorf("nothing above %s in its section uses it: %s", name, strings.Join(above, ", "))
}

// A declaration is one of a file, on its top level.
type declaration struct {
	uses []string
}

// declares says where a name is if the file does not declare it.
func declares(file, name string) error {
	all := declarations(file)
	if _, ok := all[name]; ok {
		return nil
	}
	if len(all) == 0 {
		return fmt.Errorf("%s declares nothing, nor %s: does it compile?", file, name)
	}
	near := likeNames(file, name)
	if len(near) == 0 {
		return fmt.Errorf("%s declares no %s", file, name)
	}
	return fmt.Errorf("%s declares no %s; near: %s", file, name, strings.Join(near[:min(4, len(near))], ", "))
}

// likeNames are what a name that a file does not declare may have meant, the most
// likely first: the name in another file around it, one of another type in its
// folder, a similar one in the file.
func likeNames(file, name string) (near []string) {
	found := map[int][]string{}
	for _, f := range treeFiles() {
		if !within(path.Dir(f), path.Dir(path.Dir(file))) || path.Ext(f) != ".go" || strings.HasSuffix(f, "_test.go") {
			continue
		}
		for have := range declarations(f) {
			rank := -1
			switch {
			case have == name:
				rank = 0
			case path.Dir(f) == path.Dir(file) && ownName(have) == ownName(name):
				rank = 1
			case f == file && distance(ownName(have), ownName(name)) <= 4:
				rank = 2
			}
			found[rank] = append(found[rank], have+" in "+f)
		}
	}
	for rank := range 3 {
		near = append(near, slices.Sorted(slices.Values(found[rank]))...)
	}
	return near
}

// ownName is a method's name without its type.
func ownName(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

var declarationCache sync.Map // file to its declarations

// declarations are what a Go file declares: functions, methods as Type.method,
// types, variables and constants.
func declarations(file string) map[string]declaration {
	if d, ok := declarationCache.Load(file); ok {
		return d.(map[string]declaration)
	}
	all := map[string]declaration{}
	declarationCache.Store(file, all)
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		return all
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			all[name] = declaration{identifiers(d.Body)}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					all[s.Name.Name] = declaration{identifiers(s.Type)}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						var used []string
						for _, v := range s.Values {
							used = append(used, identifiers(v)...)
						}
						all[n.Name] = declaration{used}
					}
				}
			}
		}
	}
	return all
}

// receiver is the type of a method's receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// identifiers are those in a piece of code, in order.
func identifiers(n ast.Node) (names []string) {
	if block, ok := n.(*ast.BlockStmt); ok && block == nil { // a function without a body
		return nil
	}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}

// TestSection: a name that nobody above uses, or uses in another order, is found.
func TestSection(t *testing.T) {
	const file = "test/arch/lives_test.go"
	for _, c := range []struct{ names, want string }{
		{"section.add declares declarations", ""},
		{"section.add declares declarations receiver identifiers", ""},
		{"declarations identifiers receiver", "uses receiver before"},
		{"section.add receiver", "nothing above receiver"},
		{"section.added", "declares no section.added"},
	} {
		var err error
		names := &section{}
		for _, name := range strings.Fields(c.names) {
			if e := names.add(file, name); e != nil {
				err = e
			}
		}
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v, want %q", c.names, err, c.want)
		}
	}
}
