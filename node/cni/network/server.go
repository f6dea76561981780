package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"knarr/internal/run"
	"knarr/internal/unixsocket"
)

// socketName is that of the socket in the state directory at which the node's own process
// does what the plugin is asked: it has a Kernel that stays open.
const socketName = "cni.sock"

// A request is a command as a plugin gets it: its variables and its input.
type request struct {
	Env   map[string]string
	Input []byte
}

type response struct {
	Code   int
	Output []byte
}

// variables are those of the specification.
var variables = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}

// served are the commands that the process does; others are rare, or ask for this plugin.
var served = []string{"ADD", "DEL", "CHECK"}

const (
	maxInput = 4 << 20
	// maxRequest is that with its frame.
	maxRequest = 2 * maxInput
	// askTime bounds how long the request may take to arrive.
	askTime = 10 * time.Second
)

// Serve does the commands of plugins until ctx ends, where the state directory's name is
// short enough for a socket in it.
func Serve(ctx context.Context, stateDir string) error {
	path := filepath.Join(stateDir, socketName)
	if len(path) > unixsocket.MaxPath {
		slog.Info("pod network: plugins work by themselves, which takes longer: the name of a socket would be too long", "socket", path)
		<-ctx.Done()
		return nil
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	listener, err := unixsocket.Listen(path, 0o600)
	if err != nil {
		return err
	}
	s := &server{running: map[string]chan struct{}{}}
	var wg run.Group
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if stop() { // it still runs
				err = errors.Join(err, listener.Close())
			} else {
				err = nil
			}
			wg.Wait()
			return errors.Join(err, s.kernel.Close())
		}
		wg.Go("pod network: plugin", func() {
			if err := s.answer(conn); err != nil {
				slog.Warn("pod network: a plugin was not answered", "err", err)
			}
		})
	}
}

type server struct {
	kernel Kernel

	mu      sync.Mutex
	running map[string]chan struct{} // closed when the command for this container has ended
}

// begin waits until no other command for the container is under way: a runtime that gives
// one up ends the plugin, which does not end the work here, and asks for the next. It gives
// nil if whoever asks is gone meanwhile.
func (s *server) begin(id string, gone <-chan struct{}) (end func()) {
	for {
		s.mu.Lock()
		busy := s.running[id]
		if busy == nil {
			done := make(chan struct{})
			s.running[id] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.running, id)
				close(done)
			}
		}
		s.mu.Unlock()
		select {
		case <-busy:
		case <-gone:
			return nil
		}
	}
}

// answer does one command, on a thread that ends with it.
func (s *server) answer(conn *net.UnixConn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askTime)); err != nil {
		return err
	}
	if other, err := unixsocket.Peer(conn); err != nil || int(other.Uid) != os.Geteuid() {
		return errors.Join(fmt.Errorf("the user %d asks", other.Uid), err)
	}
	var r request
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&r); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	gone := make(chan struct{})
	run.Go("pod network: end of a plugin", func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn) // it says no more
	})
	end := s.begin(r.Env["CNI_CONTAINERID"], gone)
	if end == nil {
		return nil
	}
	defer end()
	var out bytes.Buffer
	var code int
	err := run.OnThread("pod network: command", func() error {
		code = Command(&s.kernel, func(name string) string { return r.Env[name] }, bytes.NewReader(r.Input), &out)
		return nil
	})
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(askTime)); err != nil {
		return err
	}
	return json.NewEncoder(conn).Encode(response{code, out.Bytes()})
}

// Main is the plugin: it has the node's process do the command, or does it itself where
// that does not run, or breaks off. A command may be done again.
func Main(env func(string) string, in io.Reader, out io.Writer) int {
	if !slices.Contains(served, env("CNI_COMMAND")) {
		return Command(nil, env, in, out)
	}
	input, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil || len(input) > maxInput {
		return Command(nil, env, io.MultiReader(bytes.NewReader(input), in), out)
	}
	r := request{map[string]string{}, input}
	for _, name := range variables {
		r.Env[name] = env(name)
	}
	if res, err := ask(r); err == nil {
		if _, err := out.Write(res.Output); err != nil {
			return 1
		}
		return res.Code
	}
	return Command(nil, env, bytes.NewReader(input), out)
}

// ask has the node's process do it.
func ask(r request) (res response, err error) {
	var c struct{ StateDir string }
	if err := json.Unmarshal(r.Input, &c); err != nil {
		return res, err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(c.StateDir, socketName), Net: "unix"})
	if err != nil {
		return res, err
	}
	defer conn.Close()
	if err := sameNamespaces(conn); err != nil {
		return res, err
	}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return res, err
	}
	return res, json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&res)
}

// sameNamespaces says whether the process at the other end finds the same files by a path,
// and the same links by a name.
func sameNamespaces(conn *net.UnixConn) error {
	other, err := unixsocket.Peer(conn)
	if err != nil {
		return err
	}
	for _, kind := range []string{"mnt", "net"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", other.Pid, kind))
		if err != nil {
			return err
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		if ours != theirs {
			return fmt.Errorf("the node's process is in another %s namespace", kind)
		}
	}
	return nil
}
