// Command program is the socket holder: it keeps descriptors that a server gave
// it, for the next server to take. It reads and writes its Unix socket only,
// and ends on request, or when no server has been there for a minute.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/holder"
)

// alone is how long sockets are held with no server there.
const alone = time.Minute

// held are the sockets, by name.
type held struct {
	mu      sync.Mutex
	fds     map[string]int
	servers int
	timer   *time.Timer
}

// most bounds what is held: a server has a handful, and each Gateway some more.
const most = 512

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: knarr-holder SOCKET")
		os.Exit(1)
	}
	path := os.Args[1]
	_ = os.Remove(path)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l.SetUnlinkOnClose(true)
	h := &held{fds: map[string]int{}}
	h.timer = time.AfterFunc(alone, func() { l.Close() })
	fmt.Println() // listening
	os.Stdout.Close()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			if h.serve(conn) {
				l.Close()
			}
		}()
	}
}

// serve speaks with one server; true when it asked the holder to end.
func (h *held) serve(conn *net.UnixConn) bool {
	defer conn.Close()
	h.mu.Lock()
	h.servers++
	h.timer.Stop()
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.servers--; h.servers == 0 {
			h.timer.Reset(alone)
		}
	}()
	for {
		message, fd, err := holder.Receive(conn)
		if err != nil {
			return false
		}
		verb, name, _ := strings.Cut(message, " ")
		answer := "ok"
		var rights []byte
		h.mu.Lock()
		switch verb {
		case "keep":
			if old, ok := h.fds[name]; ok {
				unix.Close(old)
			}
			if fd >= 0 && len(h.fds) < most {
				h.fds[name], fd = fd, -1
			}
		case "drop":
			if old, ok := h.fds[name]; ok {
				unix.Close(old)
				delete(h.fds, name)
			}
		case "next":
			answer = h.after(name)
		case "take":
			answer = "none"
			if f, ok := h.fds[name]; ok {
				answer, rights = "ok", unix.UnixRights(f)
			}
		}
		h.mu.Unlock()
		if fd >= 0 {
			unix.Close(fd)
		}
		if _, _, err := conn.WriteMsgUnix([]byte(answer), rights, nil); err != nil {
			return false
		}
		if verb == "end" {
			return true
		}
	}
}

// after names what is held and follows a name in their order.
func (h *held) after(name string) string {
	next := ""
	for other := range h.fds {
		if other > name && (next == "" || other < next) {
			next = other
		}
	}
	if next == "" {
		return "none"
	}
	return "held " + next
}
