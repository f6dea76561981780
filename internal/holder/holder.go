// Package holder keeps listening sockets open while this process is replaced or
// killed: connections and datagrams wait in the kernel instead of failing, and
// the next process takes them over. A small program of its own, in
// internal/holder/program, holds the descriptors; this package speaks to it
// over a Unix socket.
//
// One message is one packet: "take NAME" is answered by "ok" with a descriptor
// or "none"; "keep NAME" carries a descriptor; "drop NAME" lets go of one; "next NAME" is
// answered by "held" and the name that follows, or "none"; "end" lets go of everything and
// ends the program.
package holder

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// A Client is a connection to the holder. All methods may be called at once,
// and on a nil Client, which holds nothing.
type Client struct {
	mu   sync.Mutex
	conn *net.UnixConn
	used map[string]bool // the names that this process has taken or kept
}

// Connect reaches a running holder; an error when there is none.
func Connect(socket string) (*Client, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("reach the socket holder: %w", err)
	}
	return &Client{conn: conn, used: map[string]bool{}}, nil
}

// startTime bounds how long the program may take to listen.
const startTime = 5 * time.Second

// Start runs the holder program and connects to it. The program outlives this
// process.
func Start(program, socket string) (*Client, error) {
	cmd := exec.Command(program, socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the socket holder: %w", err)
	}
	run.Go("socket holder: wait", func() { _ = cmd.Wait() }) // no zombie, should it end first
	timer := run.AfterFunc("socket holder: start", startTime, func() { _ = ready.Close() })
	defer timer.Stop()
	var b [1]byte
	if _, err := ready.Read(b[:]); err != nil { // it says when it listens
		return nil, fmt.Errorf("start the socket holder: %w", err)
	}
	return Connect(socket)
}

// End lets go of everything held, and returns when the program has ended.
func (c *Client) End() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.conn.Close()
	program := c.program()
	if program >= 0 {
		defer unix.Close(program)
	}
	if _, _, err := c.ask("end", -1); err != nil || program < 0 {
		return err
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(program), Events: unix.POLLIN}}, int(startTime.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the socket holder: %w", err)
		case n == 0:
			return fmt.Errorf("the socket holder did not end within %s", startTime)
		default:
			return nil
		}
	}
}

// program is a handle of the process at the other end, -1 if there is none.
func (c *Client) program() int {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	_ = raw.Control(func(socket uintptr) {
		peer, err := unix.GetsockoptUcred(int(socket), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || int(peer.Pid) == unix.Getpid() {
			return
		}
		if got, err := unix.PidfdOpen(int(peer.Pid), 0); err == nil {
			fd = got
		}
	})
	return fd
}

// ask sends a message, with a descriptor unless fd is negative, and waits for
// the answer and the descriptor that may come with it.
func (c *Client) ask(message string, fd int) (answer string, got int, err error) {
	_ = c.conn.SetDeadline(time.Now().Add(startTime))
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if _, _, err := c.conn.WriteMsgUnix([]byte(message), rights, nil); err != nil {
		return "", -1, fmt.Errorf("socket holder: %w", err)
	}
	return Receive(c.conn)
}

// Receive reads one packet and the descriptor that may come with it, -1 without.
func Receive(conn *net.UnixConn) (message string, fd int, err error) {
	buf, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return "", -1, err
	}
	fd = -1
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return "", -1, err
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			fd = fds[0]
			unix.CloseOnExec(fd)
		}
	}
	if n == 0 && fd < 0 {
		return "", -1, errors.New("closed")
	}
	return string(buf[:n]), fd, nil
}

// take asks for a socket held under name; nil when there is none.
func (c *Client) take(name string) *os.File {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, fd, err := c.ask("take "+name, -1)
	if err != nil || fd < 0 {
		return nil
	}
	c.used[name] = true
	return os.NewFile(uintptr(fd), name)
}

// Drop lets go of the socket of l, which is about to be closed for good.
func (c *Client) Drop(l any) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.used, nameOf(l))
	_, _, err := c.ask("drop "+nameOf(l), -1)
	return err
}

// DropUnused lets go of the sockets at some addresses that an earlier process has left and
// this one does not use: clients are refused then, instead of waiting for nobody.
func (c *Client) DropUnused(which func(network string, at netip.AddrPort) bool) (dropped []string, err error) {
	if c == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := ""; ; {
		answer, _, err := c.ask("next "+name, -1)
		if err != nil {
			return dropped, err
		}
		next, ok := strings.CutPrefix(answer, "held ")
		if !ok || next <= name { // there is no more, or the program is of an older release
			return dropped, nil
		}
		name = next
		network, address, _ := strings.Cut(name, " ")
		at, err := netip.ParseAddrPort(address)
		if err != nil || c.used[name] || !which(network, at) {
			continue
		}
		if _, _, err := c.ask("drop "+name, -1); err != nil {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
}

// nameOf is what a socket is held under.
func nameOf(l any) string {
	switch l := l.(type) {
	case net.Listener:
		return l.Addr().Network() + " " + l.Addr().String()
	case net.PacketConn:
		return l.LocalAddr().Network() + " " + l.LocalAddr().String()
	}
	return ""
}

// Keep hands the socket of l, made by Listen or ListenPacket, to the holder.
func (c *Client) Keep(l any) error {
	if c == nil {
		return nil
	}
	name := nameOf(l)
	s, ok := l.(syscall.Conn)
	if !ok || name == "" {
		return fmt.Errorf("keep %T: not a socket", l)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var sent error
	if err := raw.Control(func(fd uintptr) { _, _, sent = c.ask("keep "+name, int(fd)) }); err != nil {
		return err
	}
	c.used[name] = true
	return sent
}

// Listen takes over the listener of address from the holder, or opens one.
func (c *Client) Listen(network, address string) (net.Listener, error) {
	want, err := net.ResolveTCPAddr(network, address)
	if err != nil {
		return nil, err
	}
	if want.IP == nil || want.IP.IsUnspecified() { // what such a listener calls itself
		want.IP = net.IPv6unspecified
	}
	if f := c.take("tcp " + want.String()); f != nil {
		defer f.Close()
		if l, err := net.FileListener(f); err == nil {
			return l, nil
		}
	}
	return net.Listen(network, address)
}

// ListenPacket is Listen for datagrams.
func (c *Client) ListenPacket(network, address string) (net.PacketConn, error) {
	want, err := net.ResolveUDPAddr(network, address)
	if err != nil {
		return nil, err
	}
	if want.IP == nil || want.IP.IsUnspecified() { // what such a socket calls itself
		want.IP = net.IPv6unspecified
	}
	if f := c.take("udp " + want.String()); f != nil {
		defer f.Close()
		if p, err := net.FilePacketConn(f); err == nil {
			return p, nil
		}
	}
	return net.ListenPacket(network, address)
}
