package cadvisor

import (
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"knarr/node/kubelet/cgroup"
)

var update = flag.Bool("update", false, "write what is answered into the scripts")

// unpack writes the files of a script and links for descriptors.
func unpack(t testing.TB, file string) (*txtar.Archive, string) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range a.Files {
		name := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"8/fd/0": "/dev/null", "8/fd/1": "socket:[5]", "9/fd/0": "pipe:[6]"} {
		link = filepath.Join(dir, "proc", link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"core_id", "physical_package_id"} {
		f = filepath.Join(dir, "cpus/cpu0/topology", f)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a, dir
}

// collector is one on a directory of a script.
func collector(dir string, measured *int) *Collector {
	started := time.Unix(946684000, 0)
	pod := Group{Path: "/kubepods/pod1", Namespace: "n", Pod: "p", Started: started}
	sandbox, c := pod, pod
	sandbox.Path, sandbox.Name, sandbox.Image, sandbox.Network = "/kubepods/pod1/sandbox", "sandbox", "pause", true
	c.Path, c.Name, c.Image, c.Container = "/kubepods/pod1/c", "c", "app:1", "main"
	gone := c
	gone.Path = "/kubepods/pod1/gone"
	return New(Config{
		Tree: cgroup.OpenAt(filepath.Join(dir, "cgroup")), Proc: filepath.Join(dir, "proc"), CPUs: filepath.Join(dir, "cpus"),
		Machine: Machine{ID: "id", UUID: "uuid", BootID: "boot", Kernel: "6", OS: "os", Cores: 2, Memory: 1 << 30, Swap: 5},
		Groups: func(context.Context) []Group {
			*measured++
			return []Group{{Path: "/", Network: true, Started: started}, pod, sandbox, c, gone}
		},
		Filesystems: func(context.Context) []Filesystem {
			return []Filesystem{{Device: "/dev/vda", Major: 254, Size: 100, Free: 40, Inodes: 10, InodesFree: 4}}
		},
	})
}

func scrape(c *Collector) string {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/metrics/cadvisor", nil))
	return w.Body.String()
}

// TestScripts: a directory of control groups, and every value that is told of it.
func TestScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	if len(files) != 2 {
		t.Fatal("scripts are missing")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, dir := unpack(t, file)
			var got string
			synctest.Test(t, func(*testing.T) {
				n := 0
				got = values(scrape(collector(dir, &n)))
			})
			i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "values" })
			if *update {
				a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "values" })
				a.Files = append(a.Files, txtar.File{Name: "values", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if i < 0 || got != string(a.Files[i].Data) {
				t.Errorf("got\n%s", got)
			}
		})
	}
}

// values are the lines of a scrape without comments, without labels that are the
// same in all and without values that are zero.
func values(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(line, "#") || value == "0" || strings.HasPrefix(value, "0 ") {
			continue
		}
		name = strings.NewReplacer(`,namespace="n",pod="p"`, "", `,namespace="",pod=""`, "", `boot_id="boot",machine_id="id",system_uuid="uuid"`, "").Replace(name)
		b.WriteString(name)
		if value != "" {
			b.WriteString("} " + value)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// notThere are metrics of cAdvisor's that are not told, and why.
var notThere = map[string]string{
	"container_cpu_load_average_10s":   "a kubelet's cAdvisor does not measure it and says 0",
	"container_cpu_load_d_average_10s": "the same",
	"container_tasks_state":            "the same",
	"container_fs_io_cost_":            "only where the kernel distributes disks by a cost model that nothing here sets",
	"machine_dimm_":                    "memory controllers are not read",
	"machine_nvm_":                     "a kubelet is built without the library that reads it and says 0",
}

// TestNames: names, kinds, times and labels are those of upstream's kubelet.
func TestNames(t *testing.T) {
	_, dir := unpack(t, "testdata/v2.txtar")
	n := 0
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(strings.NewReader(scrape(collector(dir, &n))))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			timed := "-"
			if m.TimestampMs != nil {
				timed = "timestamp"
			}
			got = append(got, strings.TrimSpace(strings.Join([]string{name, strings.ToLower(f.GetType().String()), timed, strings.Join(labels, ",")}, " ")))
		}
	}
	slices.Sort(got)
	got = slices.Compact(got)
	b, err := os.ReadFile("testdata/upstream.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(b)) {
		left := strings.HasPrefix(line, "#")
		for prefix := range notThere {
			left = left || strings.HasPrefix(line, prefix)
		}
		if !left {
			want = append(want, strings.TrimSpace(line))
		}
	}
	slices.Sort(want)
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("upstream has no\n%s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing\n%s", line)
		}
	}
}

// TestOnceASecond: frequent requests cost no more than one a second, and
// too many at once are turned away.
func TestOnceASecond(t *testing.T) {
	_, dir := unpack(t, "testdata/v2.txtar")
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := collector(dir, &n)
		for range 100 {
			scrape(c)
			time.Sleep(100 * time.Millisecond)
		}
		if n != 10 {
			t.Errorf("measured %d times in ten seconds", n)
		}
		for range maxWriters {
			c.writers <- struct{}{}
		}
		if got := scrape(c); got != "too many scrapes at once\n" {
			t.Errorf("beyond what is written at once: %q", got)
		}
	})
}

// TestHostile: what a pod makes long or strange is cut, left out or made harmless.
func TestHostile(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		if err := os.Symlink("socket:[1]", filepath.Join(dir, string(rune('a'+i)))); err != nil {
			t.Fatal(err)
		}
	}
	if n, sockets := countDescriptors(dir, 20); n != 20 || sockets != 20 {
		t.Errorf("%d descriptors, %d sockets", n, sockets)
	}
	if n, _ := countDescriptors(dir, 19); n != -1 {
		t.Errorf("more descriptors than are counted: %d", n)
	}
	r := reading{proc: dir, until: time.Now().Add(time.Hour)}
	if n, _ := r.descriptors(make([]string, maxProcesses+1)); n != -1 {
		t.Errorf("more processes than are looked at: %d", n)
	}
	r.until = time.Now().Add(-time.Hour)
	if n, _ := r.descriptors([]string{"1"}); n != -1 {
		t.Errorf("after the time to count: %d", n)
	}
	if n := len(Interfaces([]byte(strings.Repeat("x: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n", 1000)))); n != maxInterfaces {
		t.Errorf("%d interfaces", n)
	}
	if got := label("x", "a\"\n\\\xff"); got != "x=\"a\\\"\\n\\\\\uFFFD\"" {
		t.Errorf("label %s", got)
	}
	if n := len(label("x", strings.Repeat("y", 1<<20))); n > maxLabel+10 {
		t.Errorf("a label of %d bytes", n)
	}
}

// BenchmarkScrape is one measurement and its answer, per pod: its own group, its
// sandbox's and one container's.
func BenchmarkScrape(b *testing.B) {
	for _, file := range []string{"v1", "v2"} {
		for _, pods := range []int{1, 110, 500} {
			b.Run(fmt.Sprintf("%s/%dpods", file, pods), func(b *testing.B) {
				_, dir := unpack(b, "testdata/"+file+".txtar")
				n := 0
				c := collector(dir, &n)
				one := realistic(b, filepath.Join(dir, "cgroup"), file, c.cfg.Groups(b.Context())[1:4])
				c.cfg.Groups = func(context.Context) []Group { return slices.Repeat(one, pods) }
				b.ReportAllocs()
				bytes, before := 0, cpuTime()
				for b.Loop() {
					c.samples = nil
					bytes = len(scrape(c))
				}
				b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N*pods), "cpu-µs/pod")
				b.ReportMetric(float64(bytes), "bytes")
				b.ReportMetric(float64(zipped(c)), "gzip-bytes")
			})
		}
	}
}

// TestGzip: who takes it compressed gets the same text.
func TestGzip(t *testing.T) {
	_, dir := unpack(t, "testdata/v2.txtar")
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := collector(dir, &n)
		for accept, want := range map[string]string{"gzip": "gzip", "deflate, gzip;q=1.0": "gzip", "gzip;q=0": "", "identity": ""} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics/cadvisor", nil)
			r.Header.Set("Accept-Encoding", accept)
			c.ServeHTTP(w, r)
			if got := w.Header().Get("Content-Encoding"); got != want {
				t.Errorf("%s is answered %q", accept, got)
			}
			text := w.Body.String()
			if want == "gzip" {
				z, err := gzip.NewReader(w.Body)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(z)
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			if text != scrape(c) {
				t.Errorf("%s: another text", accept)
			}
		}
	})
}

// realistic gives groups paths as long as those of a node.
func realistic(b *testing.B, root, version string, groups []Group) []Group {
	b.Helper()
	roots := []string{root}
	if version == "v1" {
		roots, _ = filepath.Glob(root + "/*")
	}
	pod := "pod" + strings.Repeat("0123456789ab", 3)
	for _, r := range roots {
		for from, to := range map[string]string{"kubepods/" + pod: "pod1", "kubepods/pod1/" + strings.Repeat("c", 64): "c", "kubepods/pod1/" + strings.Repeat("s", 64): "sandbox"} {
			if err := os.Symlink(to, filepath.Join(r, from)); err != nil && filepath.Base(r) != "cpuacct" && !os.IsNotExist(err) {
				b.Fatal(err)
			}
		}
	}
	for i := range groups {
		g := &groups[i]
		g.Path = "/kubepods/" + pod
		if g.Name != "" {
			g.Name = strings.Repeat(g.Name[:1], 64)
			g.Path += "/" + g.Name
		}
		g.Namespace, g.Pod = "production", "frontend-7d4b8c9f6d-x2x4z"
	}
	return groups
}

// zipped is how large an answer is for a client that takes it compressed.
func zipped(c *Collector) int {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics/cadvisor", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	c.ServeHTTP(w, r)
	return w.Body.Len()
}

// cpuTime is what this process has used: on a busy machine it says more than a clock.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestParseMounts(t *testing.T) {
	got := ParseMounts([]byte(`24 27 0:6 / /dev rw - devtmpfs devtmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 254:0 /x /mnt/bind rw - ext4 /dev/vda rw
31 27 0:50 / /mnt/nfs rw - nfs server:/dev/x rw
32 27 8:1 / /boot rw - vfat /dev/sda1 rw
broken
`))
	want := []Mount{{"/dev/vda", "/", 254, 0}, {"/dev/sda1", "/boot", 8, 1}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
