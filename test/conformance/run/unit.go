package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unitName is what the node is called where the suite looks for the kubelet among
// systemd's units, by a pattern that wants a dash.
const unitName = "kubelet-node.service"

// unitSocket names where the node's unit is, for the program under systemd's names.
const unitSocket = "KNARR_UNIT"

// A unit is a node that the suite stops, configures and starts again. It does so as on a
// machine whose kubelet is a unit of systemd, by sudo and systemctl; here both are this
// program under these names.
type unit struct {
	command func() *exec.Cmd

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
	// again starts it in the place of a spec that failed and left it stopped: all that come
	// after would fail.
	again *time.Timer
}

// start starts the node, unless it runs.
func (u *unit) start() error {
	if u.running() {
		return nil
	}
	u.keepStopped()
	cmd := u.command()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	u.cmd, u.ended = cmd, ended
	return nil
}

func (u *unit) running() bool {
	if u.cmd == nil {
		return false
	}
	select {
	case <-u.ended:
		return false
	default:
		return true
	}
}

const (
	// unitStop is how long the node may take to end by itself.
	unitStop = 30 * time.Second
	// unitRest is how long a spec may leave it stopped.
	unitRest = 3 * time.Minute
)

// startAgain has it started again, unless a spec does so before.
func (u *unit) startAgain() {
	u.keepStopped()
	u.again = time.AfterFunc(unitRest, func() { _, _ = u.do([]string{"start", unitName}) })
}

func (u *unit) keepStopped() {
	if u.again != nil {
		u.again.Stop()
	}
}

// stop ends the node.
func (u *unit) stop() {
	u.keepStopped()
	if !u.running() {
		return
	}
	_ = u.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-u.ended:
	case <-time.After(unitStop):
		_ = u.cmd.Process.Kill()
		<-u.ended
	}
}

// do is systemctl.
func (u *unit) do(args []string) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch verb := args[0]; {
	case verb == "list-units":
		if u.running() {
			return unitName + " loaded active running knarr agent\n", nil
		}
		if slices.Contains(args, "--state=running") {
			return "", nil
		}
		return unitName + " loaded inactive dead knarr agent\n", nil
	case len(args) != 2 || !strings.HasPrefix(unitName, args[1]):
		return "", fmt.Errorf("systemctl %s: there is no such unit", strings.Join(args, " "))
	case verb == "reset-failed":
		return "", nil
	case verb == "kill":
		u.startAgain()
		if u.running() {
			return "", u.cmd.Process.Signal(syscall.SIGTERM)
		}
		return "", nil
	case verb == "stop":
		u.stop()
		u.startAgain()
		return "", nil
	case verb == "start":
		return "", u.start()
	case verb == "restart":
		u.stop()
		return "", u.start()
	}
	return "", fmt.Errorf("systemctl %s: the node's unit does not know this", strings.Join(args, " "))
}

// serve answers systemctl until the listener is closed.
func (u *unit) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		b, err := io.ReadAll(io.LimitReader(conn, 1<<16))
		if err == nil {
			out, err := u.do(strings.Split(string(b), "\x00"))
			code := "0"
			if err != nil {
				code, out = "1", err.Error()+"\n"
			}
			_, _ = io.WriteString(conn, code+out)
		}
		conn.Close()
	}
}

// asSystemctl is this program under that name.
func asSystemctl(args []string) error {
	conn, err := net.Dial("unix", os.Getenv(unitSocket))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Join(args, "\x00")); err != nil {
		return err
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return err
	}
	out, err := io.ReadAll(conn)
	if err != nil || len(out) == 0 {
		return errors.Join(err, errors.New("the node's unit does not answer"))
	}
	if out[0] != '0' {
		return errors.New(strings.TrimSpace(string(out[1:])))
	}
	_, err = os.Stdout.Write(out[1:])
	return err
}

// asSudo is this program under that name: it is root already.
func asSudo(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: sudo COMMAND")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}
