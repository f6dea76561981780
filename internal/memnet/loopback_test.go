package memnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type whoKey struct{}

// open returns the client of a door that h answers behind.
func open(t *testing.T, h http.HandlerFunc) (*http.Client, *Loopback) {
	t.Helper()
	d := NewLoopback()
	d.Open(Endpoint{Handler: h, Context: func(who any) context.Context { return context.WithValue(context.Background(), whoKey{}, who) }})
	t.Cleanup(func() { <-d.Close() })
	return &http.Client{Transport: d.As("kubelet")}, d
}

// What a client sees of a handler is the same with a connection and without.
func TestLoopbackAnswersAsAConnection(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("Content-Type", "text/x")
			w.Header()["Warning"] = []string{"299 - \"a\"", "299 - \"b\""}
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("Late", "never seen")
			fmt.Fprintf(w, "%s %s %s %s %q %v %d %s %v", r.Method, r.URL, r.RequestURI, r.Host, body, err, r.ContentLength, r.Header.Get("X"), r.TLS)
		case "/nothing":
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				t.Errorf("a body with 204: %v", err)
			}
		case "/sniffed":
			io.WriteString(w, "<html>")
		case "/twice":
			w.WriteHeader(http.StatusConflict)
			w.WriteHeader(http.StatusOK)
		case "/hint":
			w.WriteHeader(http.StatusEarlyHints)
			io.WriteString(w, "then")
		case "/flushed":
			w.(http.Flusher).Flush()
			io.WriteString(w, "later")
		case "/long":
			io.Copy(w, strings.NewReader(strings.Repeat("0123456789", chunk/4)))
		case "/aborted":
			panic(http.ErrAbortHandler)
		case "/brokenoff":
			io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	inside, _ := open(t, h)
	l := Listen()
	srv := &http.Server{Handler: http.HandlerFunc(h)}
	go srv.Serve(l)
	defer srv.Close()
	outside := &http.Client{Transport: &http.Transport{DialContext: l.Dial, DisableCompression: true}}
	ask := func(c *http.Client, method, path, body string) string {
		var send io.Reader
		if body != "" {
			send = strings.NewReader(body)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://loopback"+path, send)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X", "y")
		req.Header.Set("User-Agent", "test")
		resp, err := c.Do(req)
		if err != nil {
			return fmt.Sprintf("%T %v", err, errors.Is(err, io.EOF))
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		for _, own := range []string{"Date", "Content-Length", "Transfer-Encoding"} {
			resp.Header.Del(own)
		}
		return fmt.Sprintf("%s %s %v %q %v", resp.Status, resp.Proto, resp.Header, got, err)
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/echo?a=b&c=%2F", ""}, {"POST", "/echo", "body"}, {"DELETE", "/echo/../%2Fx", ""}, {"HEAD", "/echo", ""},
		{"GET", "/nothing", ""}, {"GET", "/none", ""}, {"GET", "/sniffed", ""}, {"GET", "/twice", ""}, {"GET", "/hint", ""}, {"GET", "/flushed", ""},
		{"PUT", "/long", "x"}, {"POST", "/aborted", "x"}, {"GET", "/brokenoff", ""},
	} {
		got, want := ask(inside, c.method, c.path, c.body), ask(outside, c.method, c.path, c.body)
		if got != want {
			t.Errorf("%s %s:\n without %.300s\n with    %.300s", c.method, c.path, got, want)
		}
	}
}

func TestLoopbackKnowsWhoAsks(t *testing.T) {
	c, _ := open(t, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "taken")
		fmt.Fprint(w, r.Context().Value(whoKey{}))
	})
	req, _ := http.NewRequest("GET", "http://x/", nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "kubelet" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if len(req.Header) > 0 {
		t.Errorf("the handler reached the client's header: %v", req.Header)
	}
}

func TestLoopbackStreams(t *testing.T) {
	ended := make(chan struct{})
	c, _ := open(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		if _, err := io.WriteString(w, "nobody reads it"); err == nil {
			t.Error("written to a reader that has gone")
		}
	})
	resp, err := c.Get("http://x/")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("event 0\nevent 1\nevent 2\n"))
	if _, err := io.ReadFull(resp.Body, got); err != nil || !strings.HasSuffix(string(got), "event 2\n") {
		t.Errorf("%q, %v", got, err)
	}
	resp.Body.Close()
	<-ended
	if _, err := resp.Body.Read(got); err != http.ErrBodyReadAfterClose {
		t.Errorf("read after close: %v", err)
	}
}

func TestLoopbackWhenTheClientGivesUp(t *testing.T) {
	for _, flush := range []bool{false, true} {
		ended := make(chan struct{})
		ctx, giveUp := context.WithCancel(context.Background())
		c, _ := open(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			io.WriteString(w, "unread")
			if flush {
				w.(http.Flusher).Flush()
			} else {
				giveUp()
			}
			<-r.Context().Done()
		})
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://x/", nil)
		resp, err := c.Do(req)
		if flush {
			giveUp()
			<-ended
			_, err = io.ReadAll(resp.Body)
		}
		<-ended
		if !errors.Is(err, context.Canceled) {
			t.Errorf("flush %v: %v", flush, err)
		}
		giveUp()
	}
}

func TestLoopbackBoundsWhatIsUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrote := make(chan error, 1)
		d := NewLoopback()
		d.Open(Endpoint{
			Context: func(any) context.Context { return context.Background() }, WriteTimeout: 5 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/long" {
					http.NewResponseController(w).SetWriteDeadline(time.Time{})
				}
				n, err := w.Write(make([]byte, 2*chunk))
				if err != nil && n != chunk {
					t.Errorf("%d bytes were taken that nobody has read", n)
				}
				wrote <- err
			}),
		})
		resp, err := d.As(nil).RoundTrip(request(t, "/"))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != os.ErrDeadlineExceeded {
			t.Error(err)
		}
		resp.Body.Close()
		if resp, err = d.As(nil).RoundTrip(request(t, "/long")); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour) // of the bubble's clock
		select {
		case err := <-wrote:
			t.Error("it did not wait:", err)
		default:
		}
		if b, err := io.ReadAll(resp.Body); len(b) != 2*chunk || err != nil {
			t.Error(len(b), err)
		}
		<-wrote
		<-d.Close()
	})
}

func request(t *testing.T, path string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://x"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestLoopbackOpensAndShuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, answer := NewLoopback(), make(chan struct{})
		got := make(chan error, 3)
		ask := func(req *http.Request) {
			resp, err := d.As(nil).RoundTrip(req)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			got <- err
		}
		ctx, giveUp := context.WithCancel(t.Context())
		go ask(request(t, "/").WithContext(ctx))
		synctest.Wait()
		giveUp()
		if err := <-got; err != context.Canceled {
			t.Error("while it waits:", err)
		}
		go ask(request(t, "/"))
		synctest.Wait()
		d.Open(Endpoint{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer }), Context: func(any) context.Context { return context.Background() }})
		synctest.Wait()
		empty := d.Close()
		ask(request(t, "/"))
		if err := <-got; err != net.ErrClosed {
			t.Error("after it is closed:", err)
		}
		select {
		case <-empty:
			t.Error("empty with a request under way")
		default:
		}
		close(answer)
		if err := <-got; err != nil {
			t.Error("the one under way:", err)
		}
		<-empty
		<-d.Close()
	})
}

func TestLoopbackRefusesUpgrades(t *testing.T) {
	c, _ := open(t, func(http.ResponseWriter, *http.Request) { t.Error("let in") })
	req := request(t, "/exec")
	req.Header.Set("Upgrade", "websocket")
	if _, err := c.Do(req); err == nil || !strings.Contains(err.Error(), "upgrade") {
		t.Error(err)
	}
}

// A panic ends its request, and is logged; the others go on.
func TestLoopbackSurvivesPanics(t *testing.T) {
	c, _ := open(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("a bug")
		}
	})
	if _, err := c.Get("http://x/panic"); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if resp, err := c.Get("http://x/"); err != nil || resp.StatusCode != 200 {
		t.Error(resp, err)
	}
}

// What is written arrives, whatever the sizes of writes, flushes and reads.
func TestLoopbackPassesAll(t *testing.T) {
	for seed := range uint64(5) {
		sent := make([]byte, 1<<20)
		rnd := rand.New(rand.NewPCG(seed, 0))
		rand.NewChaCha8([32]byte{byte(seed)}).Read(sent)
		c, _ := open(t, func(w http.ResponseWriter, r *http.Request) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			for rest := sent; len(rest) > 0; {
				n, err := w.Write(rest[:min(len(rest), 1+rnd.IntN(1<<rnd.IntN(19)))])
				if err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
				if rnd.IntN(4) == 0 {
					w.(http.Flusher).Flush()
				}
			}
		})
		resp, err := c.Get("http://x/")
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		for buf := make([]byte, 1<<17); err == nil; {
			var n int
			n, err = resp.Body.Read(buf[:1+rnd.IntN(1<<rnd.IntN(18))])
			got.Write(buf[:n])
		}
		if err != io.EOF || !bytes.Equal(got.Bytes(), sent) {
			t.Errorf("seed %d: %d bytes of %d, %v", seed, got.Len(), len(sent), err)
		}
	}
}
