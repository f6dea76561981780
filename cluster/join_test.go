package cluster

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func nodeAt(name, address string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}}
}

func made(name string, uid types.UID) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
}

func TestAdmit(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const old, young = "2026-01-01T00:00:00Z", "2026-01-02T03:00:00Z"
	for _, c := range []struct {
		name    string
		records map[string]string
		nodes   []corev1.Node
		byKey   bool
		want    map[string]string
		refusal string
		code    int
	}{
		{name: "the first of its name", want: map[string]string{"n": "mine 2026-01-02T03:04:05Z"}},
		{name: "again", records: map[string]string{"n": "mine " + old}, nodes: []corev1.Node{nodeAt("n", "10.0.0.7")}},
		{name: "again, before it is registered", records: map[string]string{"n": "mine " + young}},
		{name: "another's", records: map[string]string{"n": "theirs " + old}, nodes: []corev1.Node{nodeAt("n", "10.0.0.9")}, refusal: "taken by a machine with another key"},
		{name: "another's, not yet registered", records: map[string]string{"n": "theirs " + young}, refusal: "taken by a machine with another key"},
		{name: "another's that is gone", records: map[string]string{"n": "theirs " + old}, want: map[string]string{"n": "mine 2026-01-02T03:04:05Z"}},
		{name: "again, and its Node is known by now", records: map[string]string{"n": "mine " + old}, nodes: []corev1.Node{made("n", "u1")},
			byKey: true, want: map[string]string{"n": "mine " + old + " u1"}},
		{name: "by its key", records: map[string]string{"n": "mine " + old + " u1"}, nodes: []corev1.Node{made("n", "u1")}, byKey: true},
		{name: "by its key, whose Node was made anew", records: map[string]string{"n": "mine " + old + " u1"}, nodes: []corev1.Node{made("n", "u2")},
			byKey: true, refusal: "this machine's key is not that of node", code: http.StatusUnauthorized},
		{name: "by its key, whose Node is gone", records: map[string]string{"n": "mine " + young}, byKey: true, refusal: "this machine's key is not that of node", code: http.StatusUnauthorized},
		{name: "by the token, with a Node made anew", records: map[string]string{"n": "mine " + old + " u1"}, nodes: []corev1.Node{made("n", "u2")},
			want: map[string]string{"n": "mine " + old + " u2"}},
		{name: "by the token, after its Node was deleted", records: map[string]string{"n": "mine " + young + " u1"}, want: map[string]string{"n": "mine 2026-01-02T03:04:05Z"}},
		{name: "another's that was deleted", records: map[string]string{"n": "theirs " + young + " u1"}, want: map[string]string{"n": "mine 2026-01-02T03:04:05Z"}},
		{name: "another's that was made anew", records: map[string]string{"n": "theirs " + old + " u1"}, nodes: []corev1.Node{made("n", "u2")}, refusal: "taken by a machine with another key"},
		{name: "a node without a key", nodes: []corev1.Node{nodeAt("n", "10.0.0.9")}, refusal: "did not join with a token"},
		{name: "another's address", nodes: []corev1.Node{nodeAt("m", "10.0.0.7")}, refusal: "--node-ip 10.0.0.7 is that of node m"},
		{name: "records of nodes that are gone", records: map[string]string{"n": "mine " + old, "gone": "x " + old, "new": "x " + young},
			nodes: []corev1.Node{nodeAt("n", "10.0.0.7")}, want: map[string]string{"n": "mine " + old, "new": "x " + young}},
	} {
		got, err := admit(c.records, c.nodes, &joinRequest{NodeName: "n", NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}, "mine", !c.byKey, now)
		r, refused := errors.AsType[*refusal](err)
		code := cmp.Or(c.code, http.StatusConflict)
		switch {
		case c.refusal != "" && (!refused || r.code != code || !strings.Contains(r.text, c.refusal)):
			t.Errorf("%s: %v, want %s", c.name, err, c.refusal)
		case c.refusal == "" && (err != nil || !maps.Equal(got, c.want)):
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

// A node's certificate must not pass for the API server's.
func TestMayBeCalled(t *testing.T) {
	own := []string{"localhost", "kubernetes.default", "10.0.0.1", "10.43.0.1", "boss", "Castle", "2001:DB8:0::1"}
	for _, c := range []struct{ name, ip, refusal string }{
		{"n", "10.0.0.7", ""},
		{"boss", "10.0.0.7", "a name of the server itself"},
		{"kubernetes.default", "10.0.0.7", "a name of the server itself"},
		{"n", "10.0.0.1", "the server's own"},
		{"n", "10.43.0.1", "the server's own"},
		{"n", "127.0.0.1", "other nodes do not reach it"},
		{"n", "0.0.0.0", "other nodes do not reach it"},
		{"n", "::ffff:10.0.0.1", "give it as 10.0.0.1"},
		{"n", "fe80::1%eth0", "give it as fe80::1"},
		{"n", "2001:db8::1", "the server's own"},
		{"castle", "10.0.0.7", "a name of the server itself"},
		{"N!", "10.0.0.7", `--node-name "N!"`},
		{"n", "", "one to four addresses"},
	} {
		var ips []netip.Addr
		if c.ip != "" {
			ips = append(ips, netip.MustParseAddr(c.ip))
		}
		err := mayBeCalled(c.name, ips, own)
		if (c.refusal == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s at %s: %v, want %q", c.name, c.ip, err, c.refusal)
		}
	}
}
