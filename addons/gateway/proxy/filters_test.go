package proxy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"knarr/addons/gateway/route"
)

// rule leads to a backend through filters.
func rule(path string, filters route.Filters, backend string) route.Rule {
	return route.Rule{Matches: []route.Match{{Path: path}}, Filters: filters, Backends: to(backend)}
}

func prefixes(of ...string) (all []netip.Prefix) {
	for _, p := range of {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestAccess(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, show())
	f.rules(route.Listener{},
		rule("/allow", route.Filters{Access: &route.Access{Allow: prefixes("127.0.0.0/8")}}, "b"),
		rule("/others", route.Filters{Access: &route.Access{Allow: prefixes("10.0.0.0/8")}}, "b"),
		rule("/deny", route.Filters{Access: &route.Access{Deny: prefixes("127.0.0.1/32")}}, "b"))
	for target, want := range map[string]int{"/allow": 200, "/others": 403, "/deny": 403, "//others/": 403, "/x/..//deny": 403, "/%64eny": 403} {
		if answer, _ := f.get(target); answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", target, answer.StatusCode, want)
		}
	}
}

func TestBasicAuth(t *testing.T) {
	// As htpasswd writes "secret".
	users := map[string]string{
		"sha":    "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
		"apr1":   "$apr1$abcdefgh$" + strings.TrimPrefix(md5Crypt("secret", "abcdefgh", "$apr1$"), "$apr1$abcdefgh$"),
		"bcrypt": "$2y$04$N5FTV4hkvdg3V2jYu.tvdO6rMYEcTbmw5nwpVHS9jlFlVyGCNhgg2",
		"plain":  "secret",
	}
	if got := md5Crypt("myPassword", "r31.....", "$apr1$"); got != "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/" {
		t.Errorf("Apache's MD5: %s", got)
	}
	f := newFixture(t)
	f.serve("b", route.Backend{}, show())
	f.rules(route.Listener{}, rule("/", route.Filters{Auth: &route.Auth{Realm: "r", Users: users}}, "b"))
	ask := func(user, password string) int {
		answer, _ := f.get("/", "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
		return answer.StatusCode
	}
	for _, user := range []string{"sha", "apr1"} {
		if got := ask(user, "secret"); got != 200 {
			t.Errorf("%s: %d", user, got)
		}
		if got := ask(user, "secret"); got != 200 {
			t.Errorf("%s again: %d", user, got)
		}
	}
	for _, c := range [][2]string{{"sha", "other"}, {"apr1", ""}, {"bcrypt", "other"}, {"plain", "secret"}, {"nobody", "secret"}} {
		if got := ask(c[0], c[1]); got != 401 {
			t.Errorf("%v: %d", c, got)
		}
	}
	if answer, _ := f.get("/"); answer.StatusCode != 401 || answer.Header.Get("WWW-Authenticate") != `Basic realm="r", charset="UTF-8"` {
		t.Errorf("without: %d %v", answer.StatusCode, answer.Header)
	}
	for hash, want := range map[string]bool{users["sha"]: true, users["apr1"]: true, users["bcrypt"]: true, "secret": false, "$5$x$y": false} {
		if KnownHash(hash) != want {
			t.Errorf("%s is known: %v", hash, !want)
		}
	}
}

func TestExternalAuth(t *testing.T) {
	f := newFixture(t)
	f.serve("auth", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-User", "me of "+r.Header.Get("X-Original-Url"))
		switch r.Header.Get("Cookie") {
		case "ok":
		case "no":
			w.WriteHeader(403)
			_, _ = io.WriteString(w, "go away")
		case "odd":
			w.WriteHeader(500)
		default:
			w.WriteHeader(401)
		}
	})
	f.serve("b", route.Backend{}, show("X-User", "X-Role"))
	auth := &route.Auth{URL: "http://auth.example/check?of=$host", Backend: "auth", ResponseHeaders: []string{"X-User", "x-role"}, SignIn: "https://$host/login"}
	f.rules(route.Listener{}, rule("/", route.Filters{Auth: auth}, "b"),
		rule("/local", route.Filters{Auth: &route.Auth{URL: "http://" + f.address + "/"}}, "b"))
	if answer, body := f.get("/a?b", "Cookie: ok", "X-Role: admin"); answer.StatusCode != 200 || body != "GET www.example.com /a?b X-User=me of http://www.example.com/a?b X-Role=" {
		t.Errorf("allowed: %d %q", answer.StatusCode, body)
	}
	if answer, body := f.get("/", "Cookie: no"); answer.StatusCode != 403 || body != "go away" {
		t.Errorf("refused: %d %q", answer.StatusCode, body)
	}
	if answer, _ := f.get("/", "Cookie: odd"); answer.StatusCode != 500 {
		t.Errorf("failed: %d", answer.StatusCode)
	}
	if answer, _ := f.get("/a?b"); answer.StatusCode != 302 || answer.Header.Get("Location") != "https://www.example.com/login?rd=http%3A%2F%2Fwww.example.com%2Fa%3Fb" {
		t.Errorf("unknown: %d %v", answer.StatusCode, answer.Header)
	}
	if answer, _ := f.get("/local"); answer.StatusCode != 500 {
		t.Errorf("a URL of this machine is asked: %d", answer.StatusCode)
	}
}

func TestCORS(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://backend.example")
	})
	f.rules(route.Listener{},
		rule("/some", route.Filters{CORS: &route.CORS{Origins: []string{"https://a.example", "https://*.b.example"}, Methods: []string{"GET", "PUT"}, Headers: []string{"X-A"}, Expose: []string{"X-E"}, Credentials: true, MaxAge: time.Hour}}, "b"),
		rule("/any", route.Filters{CORS: &route.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}}, "b"),
		rule("/anyone", route.Filters{CORS: &route.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}, Credentials: true}}, "b"))
	for _, c := range []struct {
		target, origin, want string
	}{
		{"GET /some", "https://a.example", "200 origin=https://a.example credentials=true vary=Origin"},
		{"GET /some", "https://x.b.example", "200 origin=https://x.b.example credentials=true vary=Origin"},
		{"GET /some", "https://c.example", "200 origin= credentials= vary=Origin"},
		{"GET /any", "https://c.example", "200 origin=* credentials= vary="},
		{"OPTIONS /some", "https://a.example", "204 origin=https://a.example credentials=true vary=Origin methods=GET, PUT headers=X-A age=3600"},
		{"OPTIONS /some", "https://b.example", "204 origin= credentials= vary=Origin methods= headers= age="},
		{"OPTIONS /any", "https://c.example", "204 origin=* credentials= vary= methods=* headers=* age="},
		{"OPTIONS /anyone", "https://c.example", "204 origin=https://c.example credentials=true vary=Origin methods=PATCH headers=x-b age="},
	} {
		answer, _ := f.get(c.target, "Origin: "+c.origin, "Access-Control-Request-Method: PATCH", "Access-Control-Request-Headers: x-b")
		h := answer.Header
		got := fmt.Sprintf("%d origin=%s credentials=%s vary=%s", answer.StatusCode, h.Get("Access-Control-Allow-Origin"), h.Get("Access-Control-Allow-Credentials"), h.Get("Vary"))
		if answer.StatusCode == 204 {
			got += fmt.Sprintf(" methods=%s headers=%s age=%s", h.Get("Access-Control-Allow-Methods"), h.Get("Access-Control-Allow-Headers"), h.Get("Access-Control-Max-Age"))
		}
		if got != c.want {
			t.Errorf("%s from %s: %s, want %s", c.target, c.origin, got, c.want)
		}
	}
}

func TestLimit(t *testing.T) {
	l := newLimiter(route.Limit{Rate: 0.001, Burst: 2, Exempt: prefixes("10.0.0.0/8")})
	at := netip.MustParseAddr
	for i, want := range []bool{true, true, true, false, false} {
		if got := l.enter(at("1.2.3.4")); got != want {
			t.Errorf("request %d: %v", i, got)
		}
	}
	if !l.enter(at("1.2.3.5")) || !l.enter(at("2001:db8::1")) {
		t.Error("another client is bounded by the first one's requests")
	}
	for range 3 {
		l.enter(at("2001:db8::2"))
	}
	if l.enter(at("2001:db8::3")) {
		t.Error("a client's network is not one client")
	}
	for range 10 {
		if !l.enter(at("10.1.2.3")) {
			t.Error("an exempt client is bounded")
		}
	}
	l = newLimiter(route.Limit{Connections: 1, Code: 429})
	if !l.enter(at("1.2.3.4")) || l.enter(at("1.2.3.4")) {
		t.Error("connections are not bounded")
	}
	l.leave(at("1.2.3.4"))
	if !l.enter(at("1.2.3.4")) || l.code() != 429 {
		t.Error("a request that ended still counts")
	}
	l = newLimiter(route.Limit{Rate: 1000})
	for i := range maxClients {
		l.enter(netip.AddrFrom4([4]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if n := len(l.clients); n > maxClients {
		t.Errorf("%d clients are counted", n)
	}
	f := newFixture(t)
	f.serve("b", route.Backend{}, show())
	f.rules(route.Listener{}, rule("/", route.Filters{Limit: &route.Limit{Rate: 0.001, Code: 429}}, "b"))
	for i, want := range []int{200, 429} {
		if answer, _ := f.get("/"); answer.StatusCode != want {
			t.Errorf("request %d: %d", i, answer.StatusCode)
		}
		f.rules(route.Listener{}, rule("/", route.Filters{Limit: &route.Limit{Rate: 0.001, Code: 429}}, "b")) // counts go on
	}
}

func TestMirror(t *testing.T) {
	f := newFixture(t)
	copies := make(chan string, 10)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	})
	f.serve("m", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		copies <- fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, b)
	})
	f.rules(route.Listener{}, rule("/", route.Filters{Mirrors: []route.Mirror{{Backend: "m"}, {Backend: "m", Numerator: 0, Denominator: 10}}}, "b"))
	if _, body := f.send("POST /x?y HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"); body != "abc" {
		t.Errorf("the backend got %q", body)
	}
	if got := <-copies; got != "POST /x?y abc" {
		t.Errorf("the copy is %q", got)
	}
	select {
	case got := <-copies:
		t.Errorf("a second copy: %q", got)
	default:
	}
}

func TestErrorPages(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/404": 404, "/500": 500}[r.URL.Path])
	})
	f.serve("none", route.Backend{})
	f.serve("pages", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		show("X-Code", "X-Original-Uri", "X-Extra")(w, r)
	})
	pages := &route.ErrorPages{Backend: "pages", Codes: []int{404}, Unavailable: true, Headers: []route.Header{{Name: "X-Extra", Value: "e"}}}
	f.rules(route.Listener{}, rule("/", route.Filters{ErrorPages: pages}, "b"), rule("/none", route.Filters{ErrorPages: pages}, "none"))
	for target, want := range map[string]string{
		"/404": "404 GET www.example.com / X-Code=404 X-Original-Uri=/404 X-Extra=e", "/500": "500 ",
		"/none": "404 GET www.example.com / X-Code=503 X-Original-Uri=/none X-Extra=e",
	} {
		answer, body := f.get(target)
		if got := fmt.Sprint(answer.StatusCode, " ", body); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

func TestSession(t *testing.T) {
	f := newFixture(t)
	name := func(n string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, n) }
	}
	f.serve("b", route.Backend{}, name("1"), name("2"), name("3"))
	cookie, header := rule("/", route.Filters{}, "b"), rule("/header", route.Filters{}, "b")
	cookie.Session = &route.Session{Cookie: "knarr", MaxAge: time.Hour, SameSite: "Lax", Domain: "example.com"}
	header.Session = &route.Session{Header: "X-Session"}
	f.rules(route.Listener{}, cookie, header)
	answer, first := f.get("/")
	set := answer.Header.Get("Set-Cookie")
	value, attributes, _ := strings.Cut(set, ";")
	for _, want := range []string{"Path=/", "Max-Age=3600", "HttpOnly", "SameSite=Lax", "Domain=example.com"} {
		if !strings.Contains(attributes, want) {
			t.Errorf("Set-Cookie: %s lacks %s", set, want)
		}
	}
	for range 10 {
		if answer, body := f.get("/", "Cookie: a=b; "+value); body != first || answer.Header.Get("Set-Cookie") != "" {
			t.Errorf("the session of %s went to %s, %v", first, body, answer.Header)
		}
	}
	answer, first = f.get("/header")
	for range 10 {
		if _, body := f.get("/header", "X-Session: "+answer.Header.Get("X-Session")); body != first {
			t.Errorf("the session of %s went to %s", first, body)
		}
	}
	f.backend["b"] = route.Backend{HashBy: "$arg_user"}
	f.rules(route.Listener{}, rule("/", route.Filters{}, "b"))
	_, first = f.get("/?user=me")
	for range 10 {
		if _, body := f.get("/x?a=b&user=me"); body != first {
			t.Errorf("the same hash went to %s and %s", first, body)
		}
	}
}

// TestUpgrade: both sides' bytes pass, also those that a client sends before the answer.
func TestUpgrade(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "echo" {
			w.WriteHeader(400)
			return
		}
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Accept: yes\r\n\r\nhello ")
		_, _ = io.Copy(conn, buf)
	})
	f.rules(route.Listener{}, rule("/", route.Filters{}, "b"))
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly ")
	r := bufio.NewReader(conn)
	answer, err := http.ReadResponse(r, nil)
	if err != nil || answer.StatusCode != 101 || answer.Header.Get("X-Accept") != "yes" || answer.Header.Get("Upgrade") != "echo" {
		t.Fatalf("%+v %v", answer, err)
	}
	_, _ = io.WriteString(conn, "late")
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(r); string(got) != "hello early late" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	// An upgrade to HTTP/2 would carry requests past the routes.
	if answer, _ := f.get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"); answer.StatusCode != 400 {
		t.Errorf("h2c: %d", answer.StatusCode)
	}
}

// TestStream: what a backend sends is passed on at once, and a client that leaves ends
// the backend's request.
func TestStream(t *testing.T) {
	f := newFixture(t)
	next, left := make(chan string), make(chan struct{})
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for {
			select {
			case text := <-next:
				_, _ = io.WriteString(w, text)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	f.rules(route.Listener{}, rule("/", route.Filters{}, "b"))
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(answer, err)
	}
	for _, text := range []string{"data: 1\n\n", "data: 2\n\n"} {
		next <- text
		buf := make([]byte, len(text))
		if _, err := io.ReadFull(answer.Body, buf); err != nil || string(buf) != text {
			t.Fatalf("%q %v", buf, err)
		}
	}
	_ = conn.Close()
	<-left
}
