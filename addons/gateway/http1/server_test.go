package http1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// exchange serves what a client sends over a pipe, and returns all that it reads until the
// server ends the connection or has nothing more to say.
func exchange(t *testing.T, h http.HandlerFunc, sent string) string {
	t.Helper()
	var got bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		s := NewServer(h, nil)
		go s.Serve(server, server, nil)
		go func() {
			_, _ = io.WriteString(client, sent)
		}()
		_, _ = io.Copy(&got, client)
		_ = client.Close()
		synctest.Wait()
	})
	return got.String()
}

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, "%s %s %s %q %s\n", r.Method, r.Host, r.RequestURI, body, r.Header.Get("X"))
}

// statuses are those of the answers in a stream of them.
func statuses(t *testing.T, stream string) (all []int) {
	r := bufio.NewReader(strings.NewReader(stream))
	for {
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			return all
		}
		all = append(all, answer.StatusCode)
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

// TestRefused: messages of which there are two readings are answered by an error, and what
// follows them is not read as a request. Most are from public lists of smuggling cases.
func TestRefused(t *testing.T) {
	next := "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
	for name, c := range map[string]struct {
		head string
		want int
	}{
		"two lengths":                     {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", 400},
		"two equal lengths":               {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", 400},
		"a list of lengths":               {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0, 0\r\n\r\n", 400},
		"length with a sign":              {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +0\r\n\r\n", 400},
		"negative length":                 {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
		"hexadecimal length":              {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x0\r\n\r\n", 400},
		"length beyond all bounds":        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n", 400},
		"empty length":                    {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\n", 400},
		"length with a space in it":       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0 0\r\n\r\n", 400},
		"CL.TE":                           {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"TE.CL":                           {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
		"two codings":                     {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400},
		"a list of codings":               {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501},
		"gzip, chunked":                   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
		"xchunked":                        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
		"chunked twice":                   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501},
		"an empty coding before":          {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", 501},
		"an empty coding":                 {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n", 501},
		"identity":                        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", 501},
		"chunked with a parameter":        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 501},
		"coding in another case, twice":   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"length with a vertical tab":      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\x0b\r\n\r\n", 400},
		"length with an underscore":       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n", 400},
		"length in another case, twice":   {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\ncontent-length: 5\r\n\r\n", 400},
		"quoted chunked":                  {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 501},
		"chunked with a vertical tab":     {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400},
		"coding of HTTP/1.0":              {"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"space before a colon":            {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
		"tab before a colon":              {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length\t: 5\r\n\r\n", 400},
		"space before a name":             {"POST / HTTP/1.1\r\nHost: h\r\n Transfer-Encoding: chunked\r\n\r\n", 400},
		"folded line":                     {"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n\tb\r\n\r\n", 400},
		"folded coding":                   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", 400},
		"line without colon":              {"GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", 400},
		"empty name":                      {"GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", 400},
		"NUL in a value":                  {"GET / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", 400},
		"CR in a value":                   {"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400},
		"LF alone":                        {"GET / HTTP/1.1\nHost: h\n\n", 400},
		"LF alone after a field":          {"GET / HTTP/1.1\r\nHost: h\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n", 400},
		"name with a brace":               {"GET / HTTP/1.1\r\nHost: h\r\nX{: a\r\n\r\n", 400},
		"no host":                         {"GET / HTTP/1.1\r\n\r\n", 400},
		"two hosts":                       {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
		"two spaces":                      {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"space in the target":             {"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"tab in the line":                 {"GET\t/\tHTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"no version":                      {"GET /\r\nHost: h\r\n\r\n", 400},
		"HTTP/2.0":                        {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
		"HTTP/1.2":                        {"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505},
		"HTTP/1.10":                       {"GET / HTTP/1.10\r\nHost: h\r\n\r\n", 400},
		"lower-case version":              {"GET / http/1.1\r\nHost: h\r\n\r\n", 400},
		"method with a colon":             {"GE:T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"target of another scheme":        {"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"target with a user":              {"GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"target that is no path":          {"GET a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		"unknown expectation":             {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 200-ok\r\n\r\n", 417},
		"garbage":                         {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		"very long head":                  {"GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("a", maxHead) + "\r\n\r\n", 431},
		"very many fields":                {"GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: a\r\n", maxFields) + "\r\n", 431},
		"preface of HTTP/2 nobody serves": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
	} {
		got := exchange(t, func(w http.ResponseWriter, r *http.Request) {
			t.Errorf("%s: %s %s is served", name, r.Method, r.RequestURI)
		}, c.head+next)
		if all := statuses(t, got); len(all) != 1 || all[0] != c.want {
			t.Errorf("%s: %v, want %d", name, all, c.want)
		}
	}
}

// TestBadBodies: a body that is not what its head promised ends the connection.
func TestBadBodies(t *testing.T) {
	for name, body := range map[string]string{
		"no size":              "\r\nabc\r\n0\r\n\r\n",
		"sign":                 "+3\r\nabc\r\n0\r\n\r\n",
		"0x":                   "0x3\r\nabc\r\n0\r\n\r\n",
		"space before":         " 3\r\nabc\r\n0\r\n\r\n",
		"space after":          "3 \r\nabc\r\n0\r\n\r\n",
		"LF after the size":    "3\nabc\r\n0\r\n\r\n",
		"LF after the data":    "3\r\nabc\n0\r\n\r\n",
		"too much data":        "3\r\nabcd\r\n0\r\n\r\n",
		"too little data":      "4\r\nabc\r\n0\r\n\r\n",
		"huge size":            "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
		"CR in an extension":   "3;a\rb\r\nabc\r\n0\r\n\r\n",
		"NUL in an extension":  "3;a\x00\r\nabc\r\n0\r\n\r\n",
		"long extension":       "3;" + strings.Repeat("a", 2000) + "\r\nabc\r\n0\r\n\r\n",
		"many extensions":      strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\na\r\n", 20) + "0\r\n\r\n",
		"folded trailer":       "3\r\nabc\r\n0\r\nX: a\r\n b\r\n\r\n",
		"trailer without name": "3\r\nabc\r\n0\r\n: a\r\n\r\n",
		"long trailer":         "3\r\nabc\r\n0\r\n" + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 20) + "\r\n",
	} {
		read := false
		got := exchange(t, func(w http.ResponseWriter, r *http.Request) {
			if r.RequestURI != "/" {
				t.Errorf("%s: %s is served", name, r.RequestURI)
				return
			}
			_, err := io.ReadAll(r.Body)
			read = err == nil
		}, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"+body+"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
		if read {
			t.Errorf("%s is read as a body; answered %q", name, got)
		}
	}
}

func TestServed(t *testing.T) {
	for sent, want := range map[string]string{
		"GET /a?b HTTP/1.1\r\nHost: h\r\nX: 1\r\nx: 2\r\n\r\n":                                               `GET h /a?b "" 1`,
		"GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n":                                                     `GET other http://other/a "" `,
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n":                                                              `OPTIONS h * "" `,
		"GET / HTTP/1.0\r\n\r\n":                                                                             `GET  / "" `,
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc":                                         `POST h / "abc" `,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n": `POST h / "abc" `,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n":       `POST h / "ab" `,
		"GET / HTTP/1.1\r\nHost: h\r\nX:  a b \t\r\n\r\n":                                                    `GET h / "" a b`,
	} {
		got := exchange(t, echo, sent)
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
	}
}

// TestPipelined: requests that are sent at once are answered in their order, and the
// connection ends when one of them asks for it.
func TestPipelined(t *testing.T) {
	got := exchange(t, echo, "POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGET /3 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /4 HTTP/1.1\r\nHost: h\r\n\r\n")
	if all := statuses(t, got); len(all) != 3 || !strings.Contains(got, "Connection: close") || strings.Contains(got, "/4") {
		t.Errorf("%v of %q", all, got)
	}
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		answer  http.HandlerFunc
		want    string // as of what comes first, without Date
	}{
		"length": {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "abc")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"},
		"chunks and a trailer": {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "abc")
			io.WriteString(w, "d")
			w.Header().Set(http.TrailerPrefix+"X", "y")
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nX: y\r\n\r\n"},
		"HEAD": {"HEAD / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "abc")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"},
		"304":     {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(304) }, "HTTP/1.1 304 Not Modified\r\n\r\n"},
		"nothing": {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"1.0":     {"GET / HTTP/1.0", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "abc") }, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"},
		"103 first": {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(204)
		}, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"},
		"a line's end in a value": {"GET / HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X", "a\r\nSet-Cookie: b")
			w.WriteHeader(204)
		}, "HTTP/1.1 204 No Content\r\n\r\n"},
	} {
		got := exchange(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = nil
			c.answer(w, r)
		}, c.request+"\r\nHost: h\r\n\r\n")
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTimes: who sends nothing, or too slowly, does not keep a connection.
func TestTimes(t *testing.T) {
	for name, c := range map[string]struct {
		sent   string
		each   time.Duration // after each byte
		before time.Duration // the end comes
		want   string
	}{
		"nothing":   {"", 0, idleTime + 3*time.Second, ""},
		"slow head": {"GET / HTTP/1.1\r\nHost: hhhhhhhhhhhhhhh\r\n\r\n", time.Second, headTime + 3*time.Second, "HTTP/1.1 408 "},
		"no body":   {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n", 0, bodyTime + 3*time.Second, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			server, client := net.Pipe()
			go NewServer(http.HandlerFunc(echo), nil).Serve(server, server, nil)
			go func() {
				for i := range len(c.sent) {
					if _, err := io.WriteString(client, c.sent[i:i+1]); err != nil {
						return
					}
					time.Sleep(c.each)
				}
			}()
			start := time.Now()
			got, _ := io.ReadAll(client)
			if took := time.Since(start); took > c.before || !strings.HasPrefix(string(got), c.want) {
				t.Errorf("%s: %q after %v", name, got, took)
			}
			_ = client.Close()
			time.Sleep(2 * time.Second) // the sender ends
		})
	}
}

// TestContinue: a client that waits for 100 gets it when its body is read, and not before.
func TestContinue(t *testing.T) {
	head := "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
	if got := exchange(t, echo, head+"abc"); !strings.HasPrefix(got, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK") {
		t.Errorf("read: %q", got)
	}
	got := exchange(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(413) }, head)
	if !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "Connection: close") {
		t.Errorf("not read: %q", got)
	}
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-release
			echo(w, r)
		}), nil)
		idle, idleClient := net.Pipe()
		busy, busyClient := net.Pipe()
		go s.Serve(idle, idle, nil)
		go s.Serve(busy, busy, nil)
		go io.WriteString(busyClient, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		synctest.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s.Shutdown(ctx)
		}()
		if got, err := io.ReadAll(idleClient); len(got) > 0 || err != nil {
			t.Errorf("idle: %q %v", got, err)
		}
		close(release)
		got, _ := io.ReadAll(busyClient)
		if !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || !strings.Contains(string(got), "Connection: close") {
			t.Errorf("busy: %q", got)
		}
		<-done
		late, lateClient := net.Pipe()
		go s.Serve(late, late, nil)
		if got, _ := io.ReadAll(lateClient); len(got) > 0 {
			t.Errorf("late: %q", got)
		}
	})
}
