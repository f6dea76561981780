package arch

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A page is a Markdown file of the tree, line by line.
type page struct {
	name  string // from the root
	lines []pageLine
}

// A pageLine is one line of a page. Base is the folder that the nearest heading
// above names in backquotes, "" if it names none: the files below it are seen from
// there too.
type pageLine struct {
	number int
	text   string
	fenced bool // it is part of a picture or a listing
	base   string
}

var headingFolder = regexp.MustCompile("^#+ .*`([^`]+)/`")

func (p *page) read(text string) {
	base, fenced := "", false
	for i, line := range strings.Split(text, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		} else if strings.HasPrefix(line, "#") && !fenced {
			base = ""
			if m := headingFolder.FindStringSubmatch(line); m != nil {
				base = m[1]
			}
		}
		p.lines = append(p.lines, pageLine{i + 1, line, fenced && !fence, base})
	}
}

// allPages are all Markdown files but those of test data and of what is built.
var allPages = sync.OnceValues(func() (all []*page, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "bin", "testdata", "node_modules"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".md":
			return nil
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		p := &page{name: filepath.ToSlash(name)}
		p.read(string(b))
		all = append(all, p)
		return err
	})
	return all, err
})

func pagesOf(t *testing.T) []*page {
	t.Helper()
	all, err := allPages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d pages found", len(all))
	}
	return all
}

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	bareSource = regexp.MustCompile(`[\w./-]*\w\.go\b`)
	plainPath  = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)*/?$`)
	declaredIn = regexp.MustCompile("`([A-Za-z_]\\w*(?:\\.[A-Za-z_]\\w*)?)` (?:in|of) `([^`]+\\.go)`")
)

// sourceEnds are the ends of names that only files of the tree have in our pages.
var sourceEnds = []string{".go", ".md", ".c", ".svg", ".txtar"}

// files are the files and folders that the line names: in backquotes, or in a
// picture by the end of the name.
func (l *pageLine) files(from string) (names []string) {
	if l.fenced {
		return bareSource.FindAllString(l.text, -1)
	}
	for _, m := range quoted.FindAllStringSubmatch(l.text, -1) {
		name := m[1]
		if !plainPath.MatchString(name) {
			continue
		}
		first, _, deep := strings.Cut(name, "/")
		if slices.Contains(sourceEnds, path.Ext(name)) || deep && (strings.HasSuffix(name, "/") || l.resolve(from, first) != "") {
			names = append(names, name)
		}
	}
	return names
}

// resolve finds a name as seen from a page's folder, the folder of the heading
// above, or the root; "" when there is no such file. What is built counts.
func (l *pageLine) resolve(from, name string) string {
	for _, dir := range []string{from, l.base, "."} {
		if full := path.Join(dir, name); l.exists(full) {
			return full
		}
	}
	return ""
}

func (l *pageLine) exists(name string) bool {
	if within(name, "bin") || within(name, "build") {
		return true
	}
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

// TestNamedFiles: every file and folder that a page names in backquotes is there,
// seen from the page's folder, the folder of the heading above, or the root; so are
// the sources that pictures name, the links, and what is said to be in a file.
func TestNamedFiles(t *testing.T) {
	for _, p := range pagesOf(t) {
		from := path.Dir(p.name)
		for _, l := range p.lines {
			for _, name := range l.files(from) {
				if l.resolve(from, name) == "" {
					t.Errorf("%s:%d: there is no %s%s", p.name, l.number, name, near(cmp.Or(l.base, from), name))
				}
			}
			if l.fenced {
				continue
			}
			for _, m := range linked.FindAllStringSubmatch(l.text, -1) {
				if _, err := os.Stat(filepath.Join(root, from, m[1])); err != nil {
					t.Errorf("%s:%d: the link to %s leads nowhere%s", p.name, l.number, m[1], near(from, m[1]))
				}
			}
			for _, m := range declaredIn.FindAllStringSubmatch(l.text, -1) {
				if file := l.resolve(from, m[2]); file != "" {
					if err := declares(file, m[1]); err != nil {
						t.Errorf("%s:%d: %v", p.name, l.number, err)
					}
				}
			}
		}
	}
}

// treeFiles are all files of the tree, from the root.
var treeFiles = sync.OnceValue(func() (all []string) {
	_ = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && slices.Contains([]string{".git", "build", "bin"}, d.Name()) {
			return filepath.SkipDir
		}
		if name, err := filepath.Rel(root, file); err == nil {
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	return all
})

// near says what a name that is not there may have meant: the same name elsewhere,
// and the most similar ones of the folder.
func near(from, name string) string {
	base := path.Base(name)
	var same, similar []string
	for _, f := range treeFiles() {
		switch {
		case path.Base(f) == base:
			same = append(same, f)
		case path.Dir(f) == path.Join(from, path.Dir(name)) && distance(path.Base(f), base) <= 4:
			similar = append(similar, f)
		}
	}
	slices.SortFunc(similar, func(a, b string) int {
		return cmp.Compare(distance(path.Base(a), base), distance(path.Base(b), base))
	})
	distanceTo := func(f string) int {
		if strings.HasSuffix(f, "/"+name) {
			return 0
		}
		return distance(f, path.Join(from, name))
	}
	slices.SortStableFunc(same, func(a, b string) int { return cmp.Compare(distanceTo(a), distanceTo(b)) })
	if near := append(same, similar...); len(near) > 0 {
		return "; near: " + strings.Join(near[:min(4, len(near))], ", ")
	}
	return ""
}

// distance is how many letters to change, add or take away make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// TestNear: a page that cites what has moved is told where it is.
func TestNear(t *testing.T) {
	if got := near("controlplane/scheduler", "leader.go"); !strings.Contains(got, "internal/leader/leader.go") {
		t.Errorf("near leader.go: %q", got)
	}
	if got := near("controlplane/scheduler", "binding.go"); !strings.Contains(got, "controlplane/scheduler/bind.go") {
		t.Errorf("near binding.go: %q", got)
	}
	l := pageLine{text: "`bind.go` and `no/such.go`, `k8s.io/api`, `plugins/`, `/healthz`, `a b.go`"}
	if got := fmt.Sprint(l.files("controlplane/scheduler")); got != "[bind.go no/such.go plugins/]" {
		t.Errorf("named files: %s", got)
	}
}
