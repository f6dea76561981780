package smoke

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// usage is what of the machine a cluster has, by its kind.
type usage map[string]float64

// margins are how much more than before is none to speak of, as a share. What is not
// named must not grow at all. The server goes on with its own work, in goroutines and
// with descriptors that come and go; its memory is as the collector left it, which keeps
// more the more pods there were at once: 60 kB lost with each of 2,000 are still seen.
var margins = map[string]float64{"descriptors": 0.05, "goroutines": 0.05, "MB of memory": 0.75, "files": 0.01}

// grown says of what there is more.
func (before usage) grown(after usage) (all []string) {
	for kind, n := range after {
		if n > before[kind]*(1+margins[kind]) {
			all = append(all, fmt.Sprintf("%s %.0f, %.0f before", kind, n, before[kind]))
		}
	}
	return all
}

// forgetTime is how long that may take: the API server keeps changes for late watchers for five
// minutes, and looks once a minute which are older.
const forgetTime = 8 * time.Minute

// asBefore waits until there is no more of anything than before.
func (c *cluster) asBefore(group string, before usage) (after usage) {
	c.t.Helper()
	defer func() {
		if len(before.grown(after)) > 0 {
			c.t.Logf("new files, some of them:\n%s", strings.Join(someNew(c.filesBefore, c.files(group)), "\n"))
		}
	}()
	c.wait("as it was", forgetTime, func(context.Context) (bool, error) {
		c.collect(group)
		if after = c.used(group); len(before.grown(after)) > 0 {
			return false, fmt.Errorf("grown: %s", strings.Join(before.grown(after), ", "))
		}
		return true, nil
	})
	return after
}

// settleTime is how long a node that has something left to clean up may go without
// doing so.
const settleTime = 5 * time.Second

// settled counts once no pod has a link and nothing becomes less any more.
func (c *cluster) settled(group string) usage {
	c.t.Helper()
	last := c.used(group)
	for {
		select {
		case <-time.After(settleTime):
		case <-c.t.Context().Done():
			c.t.Fatal(c.t.Context().Err())
		}
		c.collect(group)
		now := c.used(group)
		c.filesBefore = c.files(group)
		if now["links"] == 0 && len(now.grown(last)) == 0 {
			return now
		}
		last = now
	}
}

// collect has the container runtime remove what nothing refers to. By itself it does so
// once there were a hundred changes, and would keep what the last ones left while nothing
// happens; and what a process was at that was killed, for the day after which its lease
// ends, which is over here.
func (c *cluster) collect(group string) {
	c.t.Helper()
	client, err := containerd.New("/run/"+group+"/containerd/containerd.sock", containerd.WithDefaultNamespace("k8s.io"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	all, err := client.LeasesService().List(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range all {
		if l.Labels["containerd.io/gc.expire"] != "" {
			if err := client.LeasesService().Delete(c.t.Context(), l); err != nil && !errdefs.IsNotFound(err) {
				c.t.Fatal(err)
			}
		}
	}
	lease, err := client.LeasesService().Create(c.t.Context(), leases.WithRandomID())
	if err == nil {
		err = client.LeasesService().Delete(c.t.Context(), lease, leases.SynchronousDelete)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// used counts. A cluster's directories are c.dir and the one of its group below /run.
func (c *cluster) used(group string) usage {
	u, run := usage{"links": 0}, "/run/"+group+"/"
	own := map[int]bool{}
	for _, pid := range append(processes(c.dir), processes(run)...) {
		own[pid] = true
	}
	for pid := range own {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		anon, _ := resident(pid)
		u["processes"]++
		u["descriptors"] += float64(len(fds))
		u["MB of memory"] += anon
	}
	u["pods' processes"] = float64(len(processes(strings.Join(sleep, "\x00"))))
	u["zombies"] = zombies(own)
	for line := range strings.Lines(read(c.t, fmt.Sprintf("/proc/%d/mountinfo", c.cmd.Process.Pid))) {
		if strings.Contains(line, c.dir) || strings.Contains(line, run) {
			u["mounts"]++
		}
		if strings.Contains(line, " net:[") && strings.Contains(line, run) {
			u["network namespaces"]++
		}
	}
	u["links"] = c.podLinks(group)
	u["elements of packet rules"] = c.ruleElements(group)
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path+"/", "/"+group+"/") {
			u["control groups"]++
		}
		return nil
	})
	u["files"] = float64(len(c.files(group)))
	b, err := c.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			u["goroutines"], _ = strconv.ParseFloat(strings.TrimSpace(n), 64)
		}
	}
	return u
}

// files are those below the cluster's directories, without etcd's snapshots of every ten
// thousand writes, of which it keeps the last five.
func (c *cluster) files(group string) map[string]bool {
	all := map[string]bool{}
	for _, dir := range []string{c.dir, "/run/" + group} {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) != ".snap" {
				all[path] = true
			}
			return nil
		})
	}
	return all
}

// someNew are a few files that are not among those of before.
func someNew(before, after map[string]bool) (some []string) {
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if !before[path] && len(some) < 20 {
			some = append(some, path)
		}
	}
	return some
}

// zombies are the children of processes that ended and that nobody has waited for.
func zombies(of map[int]bool) (n float64) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		if state, parent := stateOf(file); state == "Z" && of[parent] {
			n++
		}
	}
	return n
}

// stateOf reads a process's state and its parent from its file in /proc.
func stateOf(file string) (state string, parent int) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", 0
	}
	at := strings.LastIndexByte(string(b), ')') // a name may hold anything
	_, _ = fmt.Sscan(string(b[at+1:]), &state, &parent)
	return state, parent
}

// podLinks are those of the cluster's bridge.
func (c *cluster) podLinks(group string) (n float64) {
	links, err := netlink.LinkList()
	if err != nil {
		c.t.Fatal(err)
	}
	bridge, err := netlink.LinkByName("knarr0" + strings.TrimPrefix(group, "knarr"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			n++
		}
	}
	return n
}

// ruleElements are those of all sets and maps in the cluster's tables.
func (c *cluster) ruleElements(group string) (n float64) {
	conn, err := nftables.New()
	if err != nil {
		c.t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name != group && !strings.HasPrefix(table.Name, group+"-") {
			continue
		}
		sets, err := conn.GetSets(table)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, set := range sets {
			elements, err := conn.GetSetElements(set)
			if err != nil {
				continue // it went while we looked
			}
			n += float64(len(elements))
		}
	}
	return n
}
