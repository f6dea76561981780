package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func config(dir string) Config {
	return Config{IDs: Range{unit, 3 * unit}, Each: unit, MaxPods: 3, PodDir: func(uid types.UID) string { return filepath.Join(dir, string(uid)) }}
}

func manager(t *testing.T, dir string, pods ...string) *Manager {
	t.Helper()
	m, err := New(config(dir), pods)
	if err != nil {
		t.Fatal(err)
	}
	m.draw = func(uint32) uint32 { return 0 }
	return m
}

// TestDrawnRanges: a range is any that is free, also where the draw is the last one.
func TestDrawnRanges(t *testing.T) {
	m := manager(t, t.TempDir())
	m.draw = func(n uint32) uint32 { return n - 1 }
	for _, c := range []struct{ pod, want string }{{"a", "196608"}, {"b", "65536"}, {"c", "131072"}} {
		if got := first(m, types.UID(c.pod)); got != c.want {
			t.Errorf("%s: %s, want %s", c.pod, got, c.want)
		}
	}
	seen := map[string]bool{}
	for range 100 {
		c := config(t.TempDir())
		c.IDs.Length = 100 * unit
		m, err := New(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		seen[first(m, "a")] = true
	}
	if len(seen) < 10 {
		t.Errorf("the first pods of a hundred nodes have %d ranges", len(seen))
	}
}

// first is the first id of a pod's range, or why it has none.
func first(m *Manager, pod types.UID) string {
	n, err := m.For(pod)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(n.Uids[0].HostId)
}

// TestRanges: each pod has a range of its own, the same after a restart, until it is gone.
func TestRanges(t *testing.T) {
	dir := t.TempDir()
	m := manager(t, dir)
	for _, c := range []struct{ pod, want string }{
		{"a", "65536"}, {"b", "131072"}, {"a", "65536"}, {"c", "196608"},
		{"d", "create user namespace: could not find an empty slot to allocate a user namespace"},
	} {
		if got := first(m, types.UID(c.pod)); got != c.want {
			t.Errorf("%s: %s, want %s", c.pod, got, c.want)
		}
	}
	n, err := m.For("b")
	if err != nil || n.Uids[0].ContainerId != 0 || n.Uids[0].Length != unit || len(n.Gids) != 1 || n.Gids[0].HostId != 131072 {
		t.Errorf("%v, %v", n, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "b", fileName)); err != nil || strings.TrimSpace(string(b)) !=
		`{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}` {
		t.Errorf("%s, %v", b, err)
	}
	m = manager(t, dir, "a", "b", "c", "none")
	if got := first(m, "d"); !strings.Contains(got, "could not find an empty slot") {
		t.Errorf("after a restart %s", got)
	}
	if err := m.Release("b"); err != nil {
		t.Fatal(err)
	}
	if got := first(m, "d"); got != "131072" {
		t.Errorf("after one has gone %s", got)
	}
	if err := m.Release("nobody"); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"kubelet user namespace length 65537 is not a multiple of 65536":    func(c *Config) { c.Each = 65537 },
		"kubelet user assigned ID 100000 is not a multiple of 65536":        func(c *Config) { c.IDs.First = 100000 },
		"kubelet user assigned ID 0 must be greater or equal to 65536":      func(c *Config) { c.IDs.First = 0 },
		"kubelet user assigned IDs length 65537 is not a multiple of 65536": func(c *Config) { c.IDs.Length = 65537 },
		"kubelet user assigned IDs are not enough to support 4 pods":        func(c *Config) { c.MaxPods = 4 },
	} {
		c := config(t.TempDir())
		change(&c)
		if _, err := New(c, nil); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	one := func(host, length int) string {
		return fmt.Sprintf(`[{"hostId":%d,"containerId":0,"length":%d}]`, host, length)
	}
	for file, want := range map[string]string{
		"{":  "invalid user namespace mappings file",
		`{}`: "no more than one mapping allowed.",
		`{"uidMappings":` + one(65536, 65536) + `}`:                                                                         "GID and UID mappings should be identical.",
		`{"uidMappings":` + one(65536, 65536) + `,"gidMappings":` + one(131072, 65536) + `}`:                                "GID and UID mapping should be identical",
		`{"uidMappings":` + one(65536, 131072) + `,"gidMappings":` + one(65536, 131072) + `}`:                               "wrong user namespace length 131072",
		`{"uidMappings":` + one(65537, 65536) + `,"gidMappings":` + one(65537, 65536) + `}`:                                 "wrong user namespace offset specified 65537",
		`{"uidMappings":` + one(0, 65536) + `,"gidMappings":` + one(0, 65536) + `}`:                                         "id 0 is out of range",
		`{"uidMappings":` + one(65536*4, 65536) + `,"gidMappings":` + one(65536*4, 65536) + `}`:                             "id 262144 is out of range",
		strings.ReplaceAll(`{"uidMappings":`+one(65536, 65536)+`,"gidMappings":`+one(65536, 65536)+`}`, `rId":0`, `rId":1`): "UID 0 must be mapped",
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a", fileName), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(config(dir), []string{"a"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
	}
	dir := t.TempDir()
	if got := first(manager(t, dir), "a"); got != "65536" {
		t.Fatal(got)
	}
	if err := os.CopyFS(filepath.Join(dir, "b"), os.DirFS(filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	if _, err := New(config(dir), []string{"a", "b"}); err == nil || !strings.Contains(err.Error(), `range picked for pod "b" already taken`) {
		t.Errorf("two pods with one range: %v", err)
	}
}

func TestParseIDs(t *testing.T) {
	for s, want := range map[string]string{
		"0: kubelet 65536 7208960\n":       "{65536 7208960} <nil>",
		"0: kubelet 1 2\n1: kubelet 3 4\n": `{0 0} error parsing line "0: kubelet 1 2\n1: kubelet 3 4\n": it must contain only one line`,
		"":                                 `{0 0} invalid line ""`,
		"0: kubelet 65536\n":               `{0 0} invalid line "0: kubelet 65536\n"`,
		"0: kubelet x 1\n":                 `{0 0} error parsing line "0: kubelet x 1\n": strconv.ParseUint: parsing "x": invalid syntax`,
		"0: kubelet 1 4294967296\n":        `{0 0} error parsing line "0: kubelet 1 4294967296\n": strconv.ParseUint: parsing "4294967296": value out of range`,
	} {
		r, err := parseIDs(s)
		if got := fmt.Sprint(r, " ", err); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}
