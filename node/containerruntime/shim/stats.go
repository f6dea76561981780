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
	"github.com/containerd/cgroups/v3/cgroup2"
	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"knarr/internal/kernfs"
)

// stats measures the control groups of a container, also after its end.
func (t *task) stats() (*anypb.Any, error) {
	paths, err := t.groups()
	if err != nil {
		return nil, err
	}
	var stats any
	if cgroups.Mode() == cgroups.Unified {
		stats, err = stats2(paths[""])
	} else {
		r := readers.Get().(*kernfs.Reader)
		defer readers.Put(r)
		stats, err = stats1(r, paths)
	}
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAnyToProto(stats)
}

var readers = sync.Pool{New: func() any { return new(kernfs.NewReader()) }}

// groups are the directories of the container's control groups by their controllers, of
// version 2 by no name.
func (t *task) groups() (map[string]string, error) {
	if known := t.groupPaths.Load(); known != nil {
		return *known, nil
	}
	state, err := t.container.State()
	if err != nil {
		return nil, err
	}
	t.groupPaths.Store(&state.CgroupPaths)
	return state.CgroupPaths, nil
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
	return group.StatFiltered(cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatPids | cgroup2.StatIO)
}

// within is a control group's path below where they are mounted.
func within(dir string) (string, bool) { return strings.CutPrefix(dir, "/sys/fs/cgroup/") }

// tellOOM sends an event if the kernel killed a process of the container for want
// of memory. It is asked when the container ends, since nobody acts on it before, and where
// systemd may remove the count by then, when it changes.
func (t *task) tellOOM() {
	t.oomMu.Lock()
	defer t.oomMu.Unlock()
	killed, err := t.oomKills()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		warn("read how %s ended: %v", t.id, err)
	}
	if killed > t.ooms {
		t.ooms = killed
		t.service.events.send(t.namespace, "/tasks/oom", &eventstypes.TaskOOM{ContainerID: t.id})
	}
}

// memoryEvents is the file of a control group of version 2 with that count.
const memoryEvents = "memory.events"

// oomKills reads how many processes of the container the kernel killed so.
func (t *task) oomKills() (uint64, error) {
	paths, err := t.groups()
	if err != nil {
		return 0, err
	}
	dir, file := paths["memory"], "memory.oom_control"
	if dir == "" {
		dir, file = paths[""], memoryEvents
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
