package cluster

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"knarr/internal/holder"
)

// Sockets of a process that another one takes the place of are held on: clients wait. Of
// one that ends they are not.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "holder")
	if out, err := exec.Command("go", "build", "-o", program, "../internal/holder/program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, cause := range map[string]error{"replaced": ErrReplaced, "ended": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(dir, name)
			c, err := holder.Start(program, socket)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			s := newSockets(layout{dir})
			s.until, s.holder = ctx, c
			close(s.holding)
			l, err := s.listenWhileOpen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			cancel(cause)
			l.Close()
			conn, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			if waits := err == nil; waits != (name == "replaced") {
				t.Errorf("a client is let wait: %t", waits)
			}
			if err == nil {
				conn.Close()
			}
			s.letGo()
			if next, err := holder.Connect(socket); (err == nil) != (name == "replaced") {
				t.Errorf("the holder after the end: %v", err)
			} else if err == nil {
				if err := next.End(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
