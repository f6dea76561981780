package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A load is how a contender is asked.
type load struct {
	address     string
	tls, http2  bool
	connections int
	streams     int // of each connection, with HTTP/2
	from        *net.TCPAddr
}

func (l load) dial() (net.Conn, error) {
	dialer := net.Dialer{}
	if l.from != nil {
		dialer.LocalAddr = l.from
	}
	c, err := dialer.Dial("tcp", l.address)
	if err != nil || !l.tls {
		return c, err
	}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "bench.example", NextProtos: []string{"http/1.1"}}
	if l.http2 {
		config.NextProtos = []string{"h2"}
	}
	t := tls.Client(c, config)
	if err := t.Handshake(); err != nil {
		return nil, err
	}
	if l.http2 && t.ConnectionState().NegotiatedProtocol != "h2" {
		return nil, errors.New("the server does not speak HTTP/2")
	}
	return t, nil
}

// run asks for as long as ctx lasts and counts the answers. pace, if it is not 0, is the
// time between a connection's requests; took then gets each request's time.
func (l load) run(ctx context.Context, pace time.Duration, took func(time.Duration)) (n int64, err error) {
	var count atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	for range l.connections {
		c, dialErr := l.dial()
		if dialErr != nil {
			return 0, dialErr
		}
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
		wg.Go(func() {
			defer c.Close()
			defer stop()
			var e error
			if l.http2 {
				e = askHTTP2(c, l.streams, &count)
			} else {
				e = askHTTP1(ctx, c, pace, took, &count)
			}
			if e != nil && ctx.Err() == nil {
				once.Do(func() { err = e })
			}
		})
	}
	wg.Wait()
	return count.Load(), err
}

var request = []byte("GET /path/of/it?query=1 HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n")

func askHTTP1(ctx context.Context, c net.Conn, pace time.Duration, took func(time.Duration), count *atomic.Int64) error {
	r := bufio.NewReader(c)
	for next := time.Now(); ; next = next.Add(pace) {
		if pace > 0 {
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return nil
			}
		}
		at := time.Now()
		if _, err := c.Write(request); err != nil {
			return err
		}
		if err := readAnswer(r); err != nil {
			return err
		}
		count.Add(1)
		if took != nil {
			took(time.Since(at))
		}
	}
}

func readAnswer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first && !bytes.Contains(line, []byte(" 200")):
			return fmt.Errorf("answer %q", line)
		case len(line) > 15 && bytes.EqualFold(line[:15], []byte("content-length:")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[15:]))); err != nil {
				return err
			}
		case len(line) == 0:
			if length != bodySize {
				return fmt.Errorf("a body of %d", length)
			}
			_, err := r.Discard(length)
			return err
		}
	}
}

// askHTTP2 keeps so many streams open at once.
func askHTTP2(c net.Conn, streams int, count *atomic.Int64) error {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	out := bufio.NewWriterSize(c, 32<<10)
	in := bufio.NewReaderSize(c, 32<<10)
	f := http2.NewFramer(out, in)
	f.SetReuseFrames()
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		return err
	}
	if err := f.WriteWindowUpdate(0, 1<<30); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	id := uint32(1)
	ask := func() error {
		block.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "bench.example"}, {":path", "/path/of/it?query=1"},
			{"user-agent", "bench/1.0"}, {"accept", "*/*"}, {"accept-encoding", "gzip"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		id += 2
		return err
	}
	for range streams {
		if err := ask(); err != nil {
			return err
		}
	}
	received := 0
	for {
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.DataFrame:
			received += len(frame.Data())
			ended = frame.StreamEnded()
		case *http2.HeadersFrame:
			ended = frame.StreamEnded()
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.RSTStreamFrame:
			return fmt.Errorf("stream ended: %v", frame.ErrCode)
		case *http2.GoAwayFrame:
			// A server that bounds the requests of a connection: begin again.
			return fmt.Errorf("connection ended: %v", frame.ErrCode)
		case *http2.PingFrame:
			err = f.WritePing(true, frame.Data)
		}
		if err != nil {
			return err
		}
		if received >= 1<<20 {
			if err := f.WriteWindowUpdate(0, uint32(received)); err != nil {
				return err
			}
			received = 0
		}
		if ended {
			count.Add(1)
			if err := ask(); err != nil {
				return err
			}
		}
	}
}
