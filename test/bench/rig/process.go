// Package rig starts knarr and upstream's components on this machine, each in a
// directory of its own, and says what their processes cost. It reads /proc and
// writes below the directory it is given; Stop leaves no process and no mount.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Process is a program this rig started.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// start runs a program whose output goes to dir/logs/NAME.log.
func start(dir, name, path string, env []string, args ...string) (*Process, error) {
	p := &Process{Name: name, log: filepath.Join(dir, "logs", name+".log"), done: make(chan struct{})}
	if err := os.MkdirAll(filepath.Dir(p.log), 0o755); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.Env = append(os.Environ(), env...)
	// An interrupt of the terminal is the rig's to pass on; its own death is
	// not survived.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid is the process's.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Ended is an error when the process is no more, with the end of its log.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		b, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended (%v): %s", p.Name, p.err, b[max(0, len(b)-2000):])
	default:
		return nil
	}
}

// stopTime is how long a process may take to end by itself.
const stopTime = 10 * time.Second

func (p *Process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTime):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// ticks is the kernel's USER_HZ, 100 on every Linux.
const ticks = 100

// CPU is what a process has used so far.
func CPU(pid int) (time.Duration, error) { return cpu(pid, 2) }

// CPUOfAll is that with what the programs that it started, and that have ended, have used.
func CPUOfAll(pid int) (time.Duration, error) { return cpu(pid, 4) }

// cpu sums the first of a process's own time, its kernel's, and both of its children.
func cpu(pid, first int) (sum time.Duration, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return 0, errors.New("/proc/PID/stat is short")
	}
	for _, field := range f[11 : 11+first] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/stat: %w", err)
		}
		sum += time.Duration(n) * (time.Second / ticks)
	}
	return sum, nil
}

// Memory is a process's resident memory and its highest so far, bytes.
func Memory(pid int) (now, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "VmRSS:":
			now, _ = strconv.ParseInt(f[1], 10, 64)
		case "VmHWM:":
			peak, _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	return now << 10, peak << 10, nil
}

// pidsOf are all processes that name dir on their command line.
func pidsOf(dir string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if bytes.Contains(cmdline, []byte(dir+"/")) || bytes.Contains(cmdline, []byte(dir+"\x00")) || strings.HasPrefix(exe, dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killTree ends a process and all its descendants.
func killTree(pid int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, f := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			killTree(child)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
