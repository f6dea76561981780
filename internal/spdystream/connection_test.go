package spdystream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// pair is two ends of one connection, in a bubble; what they leave makes the test fail.
func pair(t *testing.T, server, client StreamHandler) (s, c *Connection) {
	t.Helper()
	a, b := net.Pipe()
	s, c = served(t, a, true, server), served(t, b, false, client)
	return s, c
}

func served(t *testing.T, conn net.Conn, server bool, handler StreamHandler) *Connection {
	t.Helper()
	c, err := NewConnection(conn, server)
	if err != nil {
		t.Fatal(err)
	}
	go c.Serve(handler)
	t.Cleanup(c.end)
	return c
}

func none(*Stream) {}

// echo writes what it reads.
func echo(s *Stream) {
	_ = s.SendReply(http.Header{}, false)
	go func() {
		_, _ = io.Copy(s, s)
		_ = s.Close()
	}()
}

// silent accepts streams, and reads nothing.
func silent(s *Stream) { _ = s.SendReply(nil, false) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func opened(t *testing.T, c *Connection, h http.Header) *Stream {
	t.Helper()
	s, err := c.CreateStream(h, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got http.Header
		server, client := pair(t, func(s *Stream) { got = s.Headers(); echo(s) }, none)
		s := opened(t, client, http.Header{"streamType": {"data"}, "Port": {"80", "81"}})
		if got.Get("streamType") != "data" || len(got["Port"]) != 2 || s.Identifier() != 1 {
			t.Fatal(got, s.Identifier())
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
		go func() {
			if n, err := s.Write(want); n != len(want) || err != nil {
				t.Error(n, err)
			}
			_ = s.Close()
		}()
		if all, err := io.ReadAll(s); err != nil || !bytes.Equal(all, want) {
			t.Fatal(len(all), err)
		}
		if _, err := s.Write([]byte("x")); err != ErrWriteClosedStream {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(server.streams) + len(client.streams) + server.open + client.open + server.accepted + server.headers; n != 0 {
			t.Errorf("%d streams are left", n)
		}
		if err := client.CloseWait(); err != nil {
			t.Fatal(err)
		}
		<-server.CloseChan()
	})
}

func TestHeadersLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := make(chan *Stream, 1)
		_, client := pair(t, func(s *Stream) { silent(s); streams <- s }, none)
		s := opened(t, client, nil)
		at := <-streams
		for _, v := range []string{"1", "2"} {
			if err := s.SendHeader(http.Header{"N": {v}}, v == "2"); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range []string{"1", "2"} {
			if h, err := at.ReceiveHeader(); err != nil || h.Get("n") != v {
				t.Fatal(h, err)
			}
		}
		if _, err := at.ReceiveHeader(); err == nil {
			t.Error("there is no third")
		}
		if n, err := at.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Error(n, err)
		}
	})
}

func TestSubStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := make(chan *Stream, 2)
		server, client := pair(t, func(s *Stream) { silent(s); streams <- s }, echo)
		s := opened(t, client, nil)
		<-streams
		sub := must(s.CreateSubStream(nil, true))
		if p := (<-streams).Parent(); p != nil || sub.Parent() != s {
			t.Error(p)
		}
		if back := opened(t, server, nil); back.Identifier() != 2 {
			t.Error(back.Identifier())
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := pair(t, func(s *Stream) { _ = s.Refuse() }, none)
		for range 3 {
			if err := must(client.CreateStream(nil, nil, false)).Wait(); err != ErrReset {
				t.Error(err)
			}
		}
		synctest.Wait()
		if len(server.streams)+len(client.streams) != 0 {
			t.Error("streams are left")
		}
	})
}

// What was written before a reset is read; what is written after it is dropped.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := make(chan *Stream, 1)
		_, client := pair(t, func(s *Stream) { silent(s); streams <- s }, none)
		s := opened(t, client, nil)
		_ = must(s.Write([]byte("before")))
		_ = s.Reset()
		at := <-streams
		synctest.Wait()
		if all, err := io.ReadAll(at); string(all) != "before" || err != nil {
			t.Errorf("%q, %v", all, err)
		}
		if n, err := at.Write([]byte("after")); n != 5 || err != nil {
			t.Error(n, err)
		}
		if err := at.Close(); err != ErrWriteClosedStream {
			t.Error(err)
		}
		if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Error(n, err)
		}
	})
}

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := pair(t, none, none)
		for range 3 {
			for _, c := range []*Connection{server, client} {
				if _, err := c.Ping(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// One that does not answer holds Ping no longer than the connection.
func TestPingUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, b) }()
		c := served(t, a, true, none)
		c.SetIdleTimeout(time.Minute)
		if _, err := c.Ping(); err != errClosed {
			t.Error(err)
		}
		_ = b.Close()
	})
}

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		server, client := pair(t, echo, none)
		server.SetIdleTimeout(time.Minute)
		s := opened(t, client, nil)
		time.Sleep(50 * time.Second)
		_ = must(s.Write([]byte("x")))
		_ = must(io.ReadFull(s, make([]byte, 1)))
		if all, err := io.ReadAll(s); len(all) != 0 || err != nil {
			t.Error(all, err)
		}
		<-server.CloseChan()
		if d := time.Since(start); d != 110*time.Second {
			t.Error(d)
		}
	})
}

// One that neither reads nor writes is ended all the same, and who writes to it.
func TestIdleTimeoutOfOneThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		c := served(t, a, true, none)
		c.SetIdleTimeout(time.Minute)
		s, err := c.CreateStream(nil, nil, false) // it hangs: nothing reads
		if s != nil || err == nil {
			t.Error(s, err)
		}
		<-c.CloseChan()
	})
}

func TestCloseTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		server, client := pair(t, echo, none)
		opened(t, client, nil)
		client.SetCloseTimeout(time.Minute)
		_ = client.Close()
		if err := client.Wait(time.Second); err != ErrTimeout && err != nil {
			t.Error(err)
		}
		<-client.CloseChan()
		<-server.CloseChan()
		if d := time.Since(start); d > time.Minute {
			t.Error(d)
		}
		if _, err := client.CreateStream(nil, nil, false); err == nil {
			t.Error("the connection is closed")
		}
	})
}

// All that waits for a connection ends with it.
func TestEnd(t *testing.T) {
	for name, end := range map[string]func(peer net.Conn, c *Connection){
		"the other end leaves": func(peer net.Conn, _ *Connection) { _ = peer.Close() },
		"the other end goes away": func(peer net.Conn, _ *Connection) {
			_, _ = peer.Write(appendControl(nil, goAway, 0, nil, 0, goAwayOK))
		},
		"a wrong frame":    func(peer net.Conn, _ *Connection) { _, _ = peer.Write(appendData(nil, 0, 0, nil)) },
		"idle":             func(_ net.Conn, c *Connection) { c.SetIdleTimeout(time.Second) },
		"the connection's": func(_ net.Conn, c *Connection) { _ = c.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				defer b.Close()
				handled := make(chan *Stream, 3)
				c := served(t, a, true, func(s *Stream) { handled <- s })
				first := true
				for id := uint32(1); id < 6; id += 2 {
					block := append([]byte{0, 0}, appendHeaders(nil, nil, first)...)
					_ = must(b.Write(appendControl(nil, synStream, 0, block, id, 0)))
					first = false
				}
				reading, writing, replying := <-handled, <-handled, <-handled
				done := make(chan struct{})
				waits := []func(){
					func() { _, _ = reading.Read(make([]byte, 1)) },
					func() { _, _ = reading.ReceiveHeader() },
					func() { _, _ = writing.Write([]byte("x")) },
					func() { _ = replying.SendReply(nil, false) },
					func() { _, _ = c.Ping() },
					func() { _ = c.Wait(0) },
					func() {
						if s, err := c.CreateStream(nil, nil, false); err == nil {
							_ = s.Wait()
						}
					},
				}
				for _, wait := range waits {
					go func() { wait(); done <- struct{}{} }()
				}
				synctest.Wait()
				start := time.Now()
				end(b, c)
				for range waits {
					<-done
				}
				if d := time.Since(start); d > 10*time.Second {
					t.Errorf("after %v", d)
				}
			})
		})
	}
}

// What came before the end is read, the other end's FIN or not.
func TestReadAfterEnd(t *testing.T) {
	for _, server := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			streams := make(chan *Stream, 1)
			keep := func(s *Stream) { silent(s); streams <- s }
			reads, writes := pair(t, keep, keep)
			if !server {
				reads, writes = writes, reads
			}
			_ = must(opened(t, writes, nil).Write([]byte("hello")))
			synctest.Wait()
			writes.end()
			<-reads.CloseChan()
			time.Sleep(keepTime / 2)
			s := <-streams
			if all, err := io.ReadAll(s); string(all) != "hello" || err != nil {
				t.Errorf("%q, %v", all, err)
			}
			if _, err := s.Write([]byte("x")); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
}

// A server does not keep for ever what is not read of a client that has left.
func TestUnreadAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := make(chan *Stream, 1)
		server, client := pair(t, func(s *Stream) { silent(s); streams <- s }, none)
		_ = must(opened(t, client, nil).Write(make([]byte, 100<<10)))
		synctest.Wait()
		client.end()
		time.Sleep(2 * keepTime)
		s := <-streams
		server.mu.Lock()
		defer server.mu.Unlock()
		if server.unread != 0 || s.chunks != nil || len(server.streams) != 0 {
			t.Error(server.unread, len(server.streams))
		}
	})
}

// A stream that nothing reads holds no more than its bound, and others go on until it is
// reached; then they go on once the stream is reset.
func TestStalledStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := make(chan *Stream, 1)
		server, client := pair(t, func(s *Stream) {
			if s.Headers().Get("stalled") != "" {
				silent(s)
				stalled <- s
				return
			}
			echo(s)
		}, none)
		s, other := opened(t, client, http.Header{"stalled": {"yes"}}), opened(t, client, nil)
		_ = must(s.Write(make([]byte, maxUnread-1)))
		_ = must(other.Write([]byte("hello")))
		if _, err := io.ReadFull(other, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = s.Write(make([]byte, 4<<20)) }()
		synctest.Wait()
		server.mu.Lock()
		if n := server.unread; n > maxUnread+maxPiece {
			t.Errorf("%d bytes are unread", n)
		}
		server.mu.Unlock()
		_ = (<-stalled).Reset()
		_ = must(other.Write([]byte("hello")))
		if _, err := io.ReadFull(other, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	})
}

// However many streams are not read, what they hold together has a bound.
func TestStalledStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := pair(t, silent, none)
		for range 20 {
			s := opened(t, client, nil)
			go func() { _, _ = s.Write(make([]byte, 200<<10)) }()
			synctest.Wait()
			if server.unread >= maxAllUnread {
				break
			}
		}
		if n := server.unread; n < maxAllUnread || n > maxAllUnread+maxPiece {
			t.Errorf("%d bytes are unread", n)
		}
	})
}

// What a stream holds is about as large as what is unread, in whatever pieces it comes.
func TestChunks(t *testing.T) {
	for _, sizes := range [][]int{{1}, {1, pieceSize / 2}, {100}, {1000}, {maxChunk, 1}, {pieceSize/2 - 1}, {maxPiece}} {
		c := must(NewConnection(nil, true))
		s := c.add(1, nil, nil)
		want := []byte{}
		for i := 0; s.unread < maxUnread; i++ {
			piece := bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)])
			want = append(want, piece...)
			if held := append(make([]byte, 0, pieceSize), piece...); !s.put(held) {
				clear(held)
			}
			s.count(len(piece))
		}
		held := 24 * cap(s.chunks)
		for _, chunk := range s.chunks {
			held += cap(chunk)
		}
		if held > 5*maxUnread/2 {
			t.Errorf("%v: %d bytes are held", sizes, held)
		}
		s.remoteClosed = true
		if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %d of %d bytes, %v", sizes, len(got), len(want), err)
		}
	}
}

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := pair(t, silent, none)
		var last *Stream
		for range maxStreams {
			last = opened(t, client, http.Header{"streamtype": {"error"}, "port": {"80"}, "requestid": {"1000"}})
		}
		if err := must(client.CreateStream(nil, nil, false)).Wait(); err != ErrReset {
			t.Error(err)
		}
		_ = last.Reset() // which the server's side knows nothing of
		if err := must(client.CreateStream(nil, nil, false)).Wait(); err != ErrReset {
			t.Error(err)
		}
		server.mu.Lock()
		s := server.streams[last.id]
		server.mu.Unlock()
		_ = s.Close()
		opened(t, client, nil)
	})
}

// A handler that is busy holds up new streams, and nothing else.
func TestBusyHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		_, client := pair(t, func(s *Stream) {
			echo(s)
			<-busy
		}, none)
		s := opened(t, client, nil)
		late := must(client.CreateStream(nil, nil, false))
		_ = must(s.Write([]byte("x")))
		_ = must(io.ReadFull(s, make([]byte, 1)))
		if err := late.WaitTimeout(time.Second); err != ErrTimeout {
			t.Error(err)
		}
		_ = must(late.Write([]byte("early"))) // which is not lost
		close(busy)
		_ = must(io.ReadFull(late, make([]byte, 5)))
	})
}

// Answers that the other end does not read do not heap up.
func TestPingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		c := served(t, a, true, none)
		go func() {
			for id := uint32(1); id < 1<<20; id += 2 {
				if _, err := b.Write(appendControl(nil, ping, 0, nil, id)); err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.replies); n < maxReplies || n > maxReplies+100 {
			t.Errorf("%d bytes of answers", n)
		}
	})
}

// Frames without a meaning here are skipped.
func TestSkippedFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		served(t, a, true, none)
		for _, kind := range []uint16{4, 9, 10, 11, 0xffff} {
			_ = must(b.Write(appendControl(nil, kind, 0, make([]byte, 1000))))
		}
		_ = must(b.Write(appendData(nil, 9, 0, []byte("of no stream"))))
		go func() { _, _ = b.Write(appendControl(nil, ping, 0, nil, 1)) }()
		got := make([]byte, 12)
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, appendControl(nil, ping, 0, nil, 1)) {
			t.Errorf("%x, %v", got, err)
		}
	})
}

// A panic in a handler ends its connection, and nothing else.
func TestPanic(t *testing.T) {
	server, client := pair(t, func(*Stream) { panic("of the handler") }, none)
	other, peer := pair(t, echo, none)
	s := must(client.CreateStream(nil, nil, false))
	if err := s.WaitTimeout(10 * time.Second); err == nil || err == ErrTimeout {
		t.Errorf("the stream: %v", err)
	}
	<-server.CloseChan()
	s = opened(t, peer, nil)
	_ = must(s.Write([]byte("x")))
	_ = must(io.ReadFull(s, make([]byte, 1)))
	select {
	case <-other.CloseChan():
		t.Error("another connection has ended")
	default:
	}
}
