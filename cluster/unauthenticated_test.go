package cluster

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// stranger begins a request to join from an address, and says no more.
func (d *joinProxy) stranger(t *testing.T, from string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", d.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{", joinPath); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answered is what the server says on a connection, within a while.
func answered(t *testing.T, conn net.Conn) int {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestUnauthenticatedRequestsTakeNoPlaces: who begins requests and does not finish them keeps
// nobody out, wherever it comes from, and is struck out.
func TestUnauthenticatedRequestsTakeNoPlaces(t *testing.T) {
	d := newJoinProxy(t)
	for i := range 2 * maxPendingBodies {
		d.stranger(t, fmt.Sprintf("127.0.1.%d", 1+i%(maxPendingBodies/2)))
	}
	for i := range maxJoins {
		a := d.agent(t, func(o *AgentOptions) {
			o.NodeName, o.hostIPs = fmt.Sprintf("n%d", i), addresses{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}
		})
		if _, err := a.askOnce(t); err != nil {
			t.Fatalf("beside strangers: %v", err)
		}
	}
	if len(d.joins.slots) != 0 {
		t.Errorf("%d places are taken", len(d.joins.slots))
	}

	// Of one address only the youngest are awaited; each that gives way is a strike.
	var conns []net.Conn
	for range maxPendingBodiesPerAddress {
		conns = append(conns, d.stranger(t, "127.0.2.1"))
	}
	for i := range maxFailedAttempts {
		conns = append(conns, d.stranger(t, "127.0.2.1"))
		if code := answered(t, conns[i]); code != http.StatusRequestTimeout {
			t.Fatalf("stranger %d was answered %d", i, code)
		}
	}
	if code := answered(t, d.stranger(t, "127.0.2.1")); code != http.StatusTooManyRequests {
		t.Errorf("who holds requests again and again is answered %d", code)
	}
}

// TestUnfinishedRequestEnds: a request that does not come has its time.
func TestUnfinishedRequestEnds(t *testing.T) {
	d := newJoinProxy(t)
	if code := answered(t, d.stranger(t, "127.0.3.1")); code != http.StatusRequestTimeout {
		t.Errorf("answered %d", code)
	}
}

// TestSecretIsForTheServer: the secret goes to nobody whose CA the token does not
// name, unless the user says so, or this machine is a member of its cluster.
func TestSecretIsForTheServer(t *testing.T) {
	d := newJoinProxy(t)
	asked := 0
	inner := d.Config.Handler
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		inner.ServeHTTP(w, r)
	})
	short := func(o *AgentOptions) { o.token.caHash = "" }
	a := d.agent(t, short)
	_, err := a.join(t.Context())
	const want = "--token names no CA, so its secret would go to whoever answers at --server; copy node-token from the server's --data-dir whole, or give --discovery-token-unsafe-skip-ca-verification to believe whoever answers"
	if err == nil || err.Error() != want || asked > 0 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if _, err := (&joinClient{server: d.URL, token: a.opts.token}).fetchCA(t.Context()); err == nil || asked > 0 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	a.opts.AnyCA = true
	if _, err := a.join(t.Context()); err != nil {
		t.Errorf("with the flag: %v", err)
	}
	// It has the CA from then on, and believes no other.
	member := d.agent(t, short)
	member.layout = a.layout
	if _, err := member.join(t.Context()); err != nil {
		t.Errorf("as a member: %v", err)
	}
	if member.opts.token.caHash != hashCA(d.joins.ca.pem) {
		t.Error("a member believes any CA")
	}
}

// TestOldestPendingBodyIsDropped: the oldest gives way to who comes, of the same address or
// of all; one that has left is not stopped.
func TestOldestPendingBodyIsDropped(t *testing.T) {
	var r pendingBodies
	stopped := map[string]int{}
	enter := func(name string, from byte) func() {
		return r.enter(netip.AddrFrom4([4]byte{10, 0, 0, from}), func() { stopped[name]++ })
	}
	left := enter("left", 1)
	left()
	for i := range maxPendingBodiesPerAddress {
		enter(fmt.Sprint("same", i), 1)
	}
	if len(stopped) > 0 {
		t.Errorf("stopped early: %v", stopped)
	}
	enter("more", 1)
	if stopped["same0"] != 1 || len(stopped) != 1 || len(r.all) != maxPendingBodiesPerAddress {
		t.Errorf("stopped %v, %d are left", stopped, len(r.all))
	}
	for i := range maxPendingBodies {
		enter(fmt.Sprint("other", i), byte(2+i))
	}
	if len(r.all) != maxPendingBodies || stopped["other0"] != 0 || stopped["more"] != 1 {
		t.Errorf("stopped %v, %d are left", stopped, len(r.all))
	}
}
