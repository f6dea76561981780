package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/watch"

	"knarr/internal/holder"
)

type watchEvent = watch.Event

// marker is the file that makes a directory a cluster's.
type marker struct {
	Version     int    `json:"version"`
	ClusterCIDR string `json:"clusterCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
}

// preflight finds what would stop the cluster later, while nothing has been
// made yet. Every error names the cause and the cure.
func (s *Server) preflight() (err error) {
	o := &s.opts
	if os.Geteuid() != 0 && !o.DisableAgent {
		return errors.New("knarr server runs containers and must be root; start it with sudo, or with --disable-agent for a control plane alone")
	}
	if err := s.claim(); err != nil {
		s.release()
		return err
	}
	// A server that was killed left its sockets with the holder.
	if c, err := holder.Connect(s.layout.holder()); err == nil {
		s.holder = c
	}
	if s.listener, err = s.listen(o.BindAddress, o.HTTPSListenPort, "https-listen-port"); err == nil && !o.DisableAgent {
		s.kubelet, err = s.listen("0.0.0.0", o.KubeletPort, "kubelet-port")
	}
	if err != nil {
		s.abandon()
		return err
	}
	return nil
}

func (s *Server) listen(address string, port int, flag string) (net.Listener, error) {
	l, err := s.holder.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d is in use by another program; stop that one or give another --%s", port, flag)
	case err != nil:
		return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
	}
	return l, nil
}

// claim makes the data directory this process's.
func (s *Server) claim() error {
	dir := s.layout.dir
	entries, err := os.ReadDir(dir)
	fresh := errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--data-dir %s: %w; give a directory that can be read and written", dir, err)
	}
	b, err := os.ReadFile(s.layout.state())
	var have marker
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &have); err != nil || have.Version != 1 {
			return fmt.Errorf("--data-dir %s belongs to another version of knarr; use that one, or give another directory", dir)
		}
		if have.ClusterCIDR != s.opts.clusterCIDR.String() {
			return fmt.Errorf("--cluster-cidr %s: this cluster was made with %s, which cannot be changed; give that one", s.opts.clusterCIDR, have.ClusterCIDR)
		}
		if have.ServiceCIDR != s.opts.serviceCIDR.String() {
			return fmt.Errorf("--service-cidr %s: this cluster was made with %s, which cannot be changed; give that one", s.opts.serviceCIDR, have.ServiceCIDR)
		}
	case !fresh:
		return fmt.Errorf("--data-dir %s holds files that are not knarr's; give an empty directory or one of a knarr cluster", dir)
	case !s.opts.DisableAgent && !empty(s.layout.kubelet()):
		return fmt.Errorf("%s holds another kubelet's files; remove what runs there, or give another --data-dir", s.layout.kubelet())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--data-dir %s: %w; give a directory that can be written", dir, err)
	}
	lock, err := os.OpenFile(s.layout.lock(), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("--data-dir %s: %w; give a directory that can be written", dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("--data-dir %s is in use by another knarr; stop that one or give another directory", dir)
	}
	s.lock, s.fresh = lock, have.Version == 0
	if s.fresh {
		b, err := json.Marshal(marker{1, s.opts.clusterCIDR.String(), s.opts.serviceCIDR.String()})
		if err != nil {
			return err
		}
		if err := writeFile(s.layout.state(), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := lock.Truncate(0); err != nil {
		return err
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return err
	}
	for _, d := range []string{s.layout.runDir(), filepath.Dir(s.layout.tls("x"))} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// empty says that a directory holds nothing, or is not there.
func empty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err != nil || len(entries) == 0
}

// abandon leaves nothing of a cluster behind that was not begun.
func (s *Server) abandon() {
	s.release()
	if s.fresh {
		for _, path := range []string{s.layout.state(), s.layout.lock(), filepath.Dir(s.layout.tls("x")), s.layout.dir, s.layout.runDir()} {
			_ = os.Remove(path) // only what is empty or made here
		}
	}
}

// release gives back what preflight took.
func (s *Server) release() {
	for _, l := range []net.Listener{s.listener, s.kubelet, s.local} {
		if l != nil {
			l.Close()
		}
	}
	if s.lock != nil {
		_ = s.lock.Truncate(0)
		s.lock.Close()
	}
}
