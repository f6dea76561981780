package projectquota

import (
	"errors"
	"strings"
	"testing"
)

func TestRange(t *testing.T) {
	for project, want := range map[uint32]bool{0: false, 0x6bffffff: false, 0x6c000000: true, 0x6cffffff: true, 0x6d000000: false} {
		if EmptyDirs.Has(project) != want || want && Volumes.Has(project) {
			t.Errorf("%x", project)
		}
	}
	tried := map[uint32]bool{}
	p, err := EmptyDirs.Free(func(p uint32) (bool, error) {
		tried[p] = true
		return len(tried) < 3, nil
	})
	if err != nil || len(tried) != 3 || !tried[p] {
		t.Errorf("%x, %v, tried %v", p, err, tried)
	}
	for p := range tried {
		if !EmptyDirs.Has(p) {
			t.Errorf("%x is drawn", p)
		}
	}
	if p, err := EmptyDirs.Free(func(uint32) (bool, error) { return true, nil }); err == nil {
		t.Errorf("all are taken, and %x is drawn", p)
	}
	broken := errors.New("broken")
	if p, err := EmptyDirs.Free(func(uint32) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("%x, %v", p, err)
	}
}

func TestNamed(t *testing.T) {
	const projects = "# 5:/a\n6:/b:9\n\n 7 :/c\n8\n99999999999:/d\n"
	const names = "a:5\n#b:6\nroot:7\n"
	for _, c := range []struct {
		text  string
		field int
		want  string
	}{{projects, 0, "67"}, {names, 1, "57"}} {
		got := ""
		for p := range uint32(10) {
			if has(c.text, c.field, p) {
				got += string(rune('0' + p))
			}
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", strings.TrimSpace(c.text), got, c.want)
		}
	}
}
