package containerruntime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestStrayFiles(t *testing.T) {
	extension := func(text string) []map[string]typeurl.Any {
		return []map[string]typeurl.Any{nil, {"metadata": &anypb.Any{Value: []byte(text)}}}
	}
	known := map[string][]map[string]typeurl.Any{
		"a": extension(`{"Version":"v1","Metadata":{"NetNSPath":"/run/k/netns/cni-1"}}`),
		"b": extension(`{"Version":"v1","Metadata":{"NetNSPath":"/run/k/netns/cni-22"}}`),
		"c": extension(`{"Version":"v1","Metadata":{"NetNSPath":""}}`),
	}
	files := []string{"/run/k/netns/cni-1", "/run/k/netns/cni-2", "/run/k/netns/cni-22", "/run/k/netns/cni-3"}
	if got, want := strayFiles(files, known), []string{"/run/k/netns/cni-2", "/run/k/netns/cni-3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestStrayLease(t *testing.T) {
	start := time.Now()
	there, gone := strings.Repeat("a", 64), strings.Repeat("b", 64)
	known := map[string][]map[string]typeurl.Any{there: nil}
	for _, c := range []struct {
		name  string
		lease leases.Lease
		want  bool
	}{
		{"of a sandbox that is there", leases.Lease{ID: there, CreatedAt: start.Add(-time.Hour)}, false},
		{"of one that is not", leases.Lease{ID: gone, CreatedAt: start.Add(-time.Hour)}, true},
		{"of one that is being made", leases.Lease{ID: gone, CreatedAt: start.Add(time.Second)}, false},
		{"of a pull", leases.Lease{ID: "126051202-uSiS", CreatedAt: start.Add(-time.Hour)}, false},
		{"that expires", leases.Lease{ID: gone, CreatedAt: start.Add(-time.Hour), Labels: map[string]string{"containerd.io/gc.expire": "x"}}, false},
	} {
		if got := strayLease(c.lease, known, start); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestRemoveHidden(t *testing.T) {
	c := Config{Root: t.TempDir(), State: t.TempDir()}
	in := func(dir, id string) string { return filepath.Join(dir, "io.containerd.runtime.v2.task", "k8s.io", id) }
	for _, path := range []string{in(c.State, ".gone"), in(c.State, "there"), in(c.Root, ".gone")} {
		if err := os.MkdirAll(filepath.Join(path, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.removeHidden(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{in(c.State, ".gone"): false, in(c.State, "there"): true, in(c.Root, ".gone"): false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}
