package shim

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"google.golang.org/protobuf/types/known/emptypb"

	"knarr/internal/run"
)

// A checkpoint is what CRIU is to write of a container, and where. What it writes is as runc
// has it written, whose restore command takes it.
type checkpoint struct {
	config     *configs.Config
	state      *libcontainer.State
	pids       []int
	io         stdio
	path, work string // of the files with the state, and of CRIU's log
	options    *options.CheckpointOptions
}

// Checkpoint writes the state of a container, which goes on, or ends if the options want it.
//
// libcontainer could have CRIU do so, but would keep all other calls for the container waiting
// for as long as its memory is large. When the caller goes away CRIU is not stopped: it has
// put code into the processes and must take it out again.
func (s *Service) Checkpoint(ctx context.Context, r *api.CheckpointTaskRequest) (*emptypb.Empty, error) {
	t, p, err := s.process(ctx, r.ID, "")
	if err != nil {
		return nil, err
	}
	select {
	case <-p.exited: // its number may be another process' by now
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "container %s is not running", t.id)
	default:
	}
	q := checkpoint{io: p.io, path: r.Path, options: &options.CheckpointOptions{}}
	if r.Options.GetValue() != nil {
		if err := typeurl.UnmarshalTo(r.Options, q.options); err != nil {
			return nil, errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "read options: %v", err)
		}
	}
	config := t.container.Config()
	q.config = &config
	if q.state, err = t.container.State(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if q.pids, err = t.container.Processes(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if q.work = q.options.WorkPath; q.work == "" {
		q.work = filepath.Join(t.bundle, "criu-work")
	}
	if !t.checkpointing.CompareAndSwap(false, true) {
		return nil, errgrpc.ToGRPCf(errdefs.ErrUnavailable, "a checkpoint of container %s is being written", t.id)
	}
	done := make(chan error, 1)
	run.Go("shim: checkpoint", func() {
		defer t.checkpointing.Store(false)
		done <- q.write()
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint container %s: %w", t.id, err))
	}
	return &emptypb.Empty{}, nil
}

// write runs CRIU to its end.
func (q *checkpoint) write() error {
	criu, err := exec.LookPath("criu")
	if err != nil {
		return fmt.Errorf("checkpoints are written by CRIU, which is not installed: %w", err)
	}
	for _, dir := range []string{q.path, q.work} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// runc's restore wants to know what the standard input and outputs were.
	descriptors, err := json.Marshal(q.state.ExternalDescriptors)
	if err == nil {
		err = os.WriteFile(filepath.Join(q.path, "descriptors.json"), descriptors, 0o600)
	}
	if err != nil {
		return err
	}
	args, err := q.args()
	if err != nil {
		return err
	}
	cmd := exec.Command(criu, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.Output(); err != nil {
		why := complaints(filepath.Join(q.work, criuLog))
		if e := (*exec.ExitError)(nil); why == "" && errors.As(err, &e) { // it has a log once it knows where
			why = strings.TrimSpace(string(e.Stderr[:min(len(e.Stderr), maxComplaint)]))
		}
		return fmt.Errorf("criu: %w: %s", err, why)
	}
	return nil
}

// criuLog is the name of CRIU's log, criuSettings the file in which users have settings of
// CRIU for runc's containers, such as tcp-established.
const (
	criuLog      = "dump.log"
	criuSettings = "/etc/criu/runc.conf"
)

// args are CRIU's arguments.
func (q *checkpoint) args() ([]string, error) {
	args := []string{
		"dump", "--tree", strconv.Itoa(q.state.InitProcessPid), "--images-dir", q.path, "--work-dir", q.work, "--log-file", criuLog, "-v4",
		"--root", q.config.Rootfs, "--manage-cgroups=" + cmp.Or(q.options.CgroupsMode, "soft"),
	}
	if _, err := os.Stat(criuSettings); err == nil {
		args = append(args, "--config", criuSettings)
	}
	for _, o := range []struct {
		flag string
		on   bool
	}{
		{"--leave-running", !q.options.Exit}, {"--tcp-established", q.options.OpenTcp}, {"--ext-unix-sk", q.options.ExternalUnixSockets},
		{"--shell-job", q.options.Terminal}, {"--file-locks", q.options.FileLocks},
		{"--empty-ns=net", slices.Contains(q.options.EmptyNamespaces, "network")},
	} {
		if o.on {
			args = append(args, o.flag)
		}
	}
	if freezer := cmp.Or(q.state.CgroupPaths["freezer"], q.state.CgroupPaths[""]); freezer != "" {
		args = append(args, "--freeze-cgroup", freezer)
	}
	for _, path := range q.mounts() {
		args = append(args, "--external", "mnt["+path+"]:"+path)
	}
	for _, path := range q.config.MaskPaths {
		if info, err := os.Stat(fmt.Sprintf("/proc/%d/root/%s", q.state.InitProcessPid, path)); err == nil && !info.IsDir() {
			args = append(args, "--external", "mnt["+path+"]:/dev/null")
		}
	}
	// The names are those by which runc's restore gives the namespaces.
	for _, n := range []struct {
		kind configs.NamespaceType
		name string
	}{{configs.NEWNET, "extRootNetNS"}, {configs.NEWPID, "extRootPidNS"}} {
		path := q.config.Namespaces.PathOf(n.kind)
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil, fmt.Errorf("no number of %s", path)
		}
		args = append(args, "--external", fmt.Sprintf("%s[%d]:%s", configs.NsName(n.kind), stat.Ino, n.name))
	}
	for _, name := range externalPipes("/proc", q.pids, []string{q.io.Stdin, q.io.Stdout, q.io.Stderr}) {
		args = append(args, "--external", name)
	}
	return args, nil
}

// mounts are where the container has files of the node. The others CRIU makes anew.
func (q *checkpoint) mounts() (all []string) {
	root := fmt.Sprintf("/proc/%d/root", q.state.InitProcessPid)
	var places []string
	for _, m := range q.config.Mounts {
		if m.Device == "bind" {
			places = append(places, m.Destination)
		}
	}
	for _, d := range q.config.Devices {
		places = append(places, d.Path)
	}
	for _, place := range places {
		// The kernel has them by their names without symlinks.
		if path, err := securejoin.SecureJoin(root, place); err == nil {
			all = append(all, strings.TrimPrefix(path, root))
		}
	}
	if !q.config.Namespaces.Contains(configs.NEWCGROUP) {
		mounted, err := mountsOf(q.state.InitProcessPid, "cgroup")
		if err == nil {
			all = append(all, mounted...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mountsOf are the mounts of file systems of a type that a process sees.
func mountsOf(pid int, fsType string) ([]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, mountinfo.FSTypeFilter(fsType))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, m := range found {
		paths = append(paths, m.Mountpoint)
	}
	return paths, nil
}

// externalPipes names, as CRIU does, the named pipes at paths that processes have as their
// standard input and outputs: they were opened where the container's processes cannot, and
// CRIU would look for their names there.
func externalPipes(proc string, pids []int, paths []string) (names []string) {
	for _, pid := range pids {
		for fd := range 3 {
			dir := filepath.Join(proc, strconv.Itoa(pid))
			opened := filepath.Join(dir, "fd", strconv.Itoa(fd))
			link, err := os.Readlink(opened)
			if err != nil || link == "" || !slices.Contains(paths, link) {
				continue
			}
			info, err := os.Stat(opened)
			if err != nil || info.Mode().Type() != os.ModeNamedPipe { // a file of the container's by that name
				continue
			}
			stat, ok := info.Sys().(*syscall.Stat_t)
			mount, found := mountOf(filepath.Join(dir, "fdinfo", strconv.Itoa(fd)))
			if !ok || !found {
				continue
			}
			if name := fmt.Sprintf("file[%x:%x]", mount, stat.Ino); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// mountOf reads the number of the mount by which a file was opened.
func mountOf(fdinfo string) (number uint64, ok bool) {
	b, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, "mnt_id:"); found {
			number, err = strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			return number, err == nil
		}
	}
	return 0, false
}

// maxComplaints bounds how many lines of CRIU's log are in an error, maxComplaint how many
// bytes of each, or of what CRIU prints: names of the container's are in them.
const maxComplaints, maxComplaint = 4, 1 << 10

// complaints are the last errors in CRIU's log.
func complaints(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var last []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if _, text, ok := strings.Cut(lines.Text(), "Error "); ok {
			last = append(last, text[:min(len(text), maxComplaint)])
			last = last[max(0, len(last)-maxComplaints):]
		}
	}
	return strings.Join(last, "; ")
}
