package kine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// settings are what the program reads.
type settings struct {
	Endpoint                  string
	CAFile, CertFile, KeyFile string
	StartTimeout              time.Duration
	Retain                    int64
	MaxRequest                int
}

// child is a running program.
type child struct {
	done chan struct{} // closed once it has ended
	why  error         // after done
}

// endTime is how long the program may go on without its connection.
const endTime = 5 * time.Second

// launch runs the program and gives the connection to it once the database is
// open. The address, which may hold a password, goes by a pipe: arguments and
// environment can be read by others.
func (c *Client) launch(ctx context.Context) (net.Conn, error) {
	input, err := json.Marshal(settings{
		Endpoint: c.cfg.Endpoint.text, CAFile: c.cfg.CAFile, CertFile: c.cfg.CertFile, KeyFile: c.cfg.KeyFile,
		StartTimeout: c.cfg.StartTimeout, Retain: c.cfg.Retain, MaxRequest: maxRequestBytes + 64<<10,
	})
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(c.cfg.Program)
	cmd.Env = []string{"SSL_CERT_FILE=" + os.Getenv("SSL_CERT_FILE"), "SSL_CERT_DIR=" + os.Getenv("SSL_CERT_DIR")}
	cmd.Stdin = bytes.NewReader(input)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no interrupt from a terminal reaches it first
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout
		err = cmd.Start()
	}
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", c.cfg.Program, err)
	}
	now := &child{done: make(chan struct{})}
	c.running = now
	firstLine := make(chan string, 1)
	run.Go("kine: wait", func() {
		defer close(now.done)
		c.listen(out, firstLine)
		now.why = cmd.Wait()
	})
	kill := func() { _ = cmd.Process.Kill() } // a process that was waited for is not signalled
	select {
	case line, ok := <-firstLine:
		if ok && line == "ready" {
			term, end := context.WithCancel(context.Background())
			c.term.Store(&term)
			return &conn{Conn: ours, end: end, last: func() { run.AfterFunc("kine: kill", endTime, kill) }}, nil
		}
		ours.Close()
		kill()
		<-now.done
		if ok {
			return nil, errors.New(line)
		}
		return nil, fmt.Errorf("the program ended: %w", now.why)
	case <-ctx.Done():
	case <-c.ended.Done():
	}
	ours.Close()
	kill()
	<-now.done
	return nil, errors.Join(ctx.Err(), c.ended.Err())
}

// listen passes on the first line that the program says, and logs the others.
func (c *Client) listen(out io.Reader, firstLine chan<- string) {
	defer close(firstLine)
	lines := bufio.NewReaderSize(out, 4096)
	for first := true; ; first = false {
		line, err := lines.ReadSlice('\n')
		text := c.cfg.Endpoint.hide(string(bytes.TrimSpace(line)))
		switch {
		case text == "":
		case first:
			firstLine <- text
		default:
			slog.Warn("datastore", "says", text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// pair are the two ends of a connection that has no name.
func pair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a connection: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "kine")
	defer mine.Close()
	theirs = os.NewFile(uintptr(fds[1]), "kine")
	if ours, err = net.FileConn(mine); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a connection: %w", err)
	}
	return ours, theirs, nil
}

// conn is the connection to the program. Its term ends before anybody hears that
// it broke, so that whoever does knows why.
type conn struct {
	net.Conn
	end  context.CancelFunc
	last func()
	once sync.Once
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.end()
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.end()
	}
	return n, err
}

func (c *conn) Close() error {
	c.end()
	c.once.Do(c.last)
	return c.Conn.Close()
}
