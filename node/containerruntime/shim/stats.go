package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// stats measures the control groups of a container, also after its end.
func (t *task) stats() (*anypb.Any, error) {
	state, err := t.container.State()
	if err != nil {
		return nil, err
	}
	var stats any
	if cgroups.Mode() == cgroups.Unified {
		stats, err = stats2(state.CgroupPaths[""])
	} else {
		stats, err = stats1(state.CgroupPaths)
	}
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAnyToProto(stats)
}

func stats1(paths map[string]string) (any, error) {
	group, err := cgroup1.Load(func(name cgroup1.Name) (string, error) {
		if dir, ok := within(paths[string(name)]); ok {
			if _, path, ok := strings.Cut(dir, "/"); ok { // after the hierarchy
				return "/" + path, nil
			}
		}
		return "", cgroup1.ErrControllerNotActive
	}, cgroup1.WithHierarchy(hierarchies))
	if err != nil {
		return nil, err
	}
	return group.Stat(cgroup1.IgnoreNotExist)
}

// known1 are the hierarchies of version 1, which do not change: they are looked
// for in the list of all mounts.
var known1 struct {
	sync.Mutex
	all []cgroup1.Subsystem
}

func hierarchies() (all []cgroup1.Subsystem, err error) {
	known1.Lock()
	defer known1.Unlock()
	if len(known1.all) == 0 {
		known1.all, err = cgroup1.Default()
	}
	return known1.all, err
}

func stats2(dir string) (any, error) {
	path, ok := within(dir)
	if !ok {
		return nil, fmt.Errorf("control group %q: %w", dir, errdefs.ErrNotFound)
	}
	group, err := cgroup2.Load("/" + path)
	if err != nil {
		return nil, err
	}
	return group.Stat()
}

// within is a control group's path below where they are mounted.
func within(dir string) (string, bool) { return strings.CutPrefix(dir, "/sys/fs/cgroup/") }

// tellOOM sends an event if the kernel killed a process of the container for want
// of memory. It is asked when the container ends: nobody acts on it before, and
// watching each group would cost descriptors for each.
func (t *task) tellOOM() {
	killed, err := t.oomKills()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		warn("read how %s ended: %v", t.id, err)
	}
	if killed > t.ooms {
		t.ooms = killed
		t.service.events.send(t.namespace, "/tasks/oom", &eventstypes.TaskOOM{ContainerID: t.id})
	}
}

// oomKills reads how many processes of the container the kernel killed so.
func (t *task) oomKills() (uint64, error) {
	state, err := t.container.State()
	if err != nil {
		return 0, err
	}
	dir, file := state.CgroupPaths["memory"], "memory.oom_control"
	if dir == "" {
		dir, file = state.CgroupPaths[""], "memory.events"
	}
	if dir == "" {
		return 0, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("no oom_kill in %s", file)
}
