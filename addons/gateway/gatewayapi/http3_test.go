package gatewayapi

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/references"
)

// A Gateway that asks for HTTP/3 gets a port of UDP beside each one of HTTPS, unless a
// listener for datagrams has that port.
func TestHTTP3(t *testing.T) {
	for _, test := range []struct {
		name   string
		asks   string
		others []gw.Listener
		want   bool
	}{
		{"it asks", "true", nil, true},
		{"it does not ask", "", nil, false},
		{"datagrams", "true", []gw.Listener{listenerOf("udp", gw.UDPProtocolType, 443, "")}, false},
		{"datagrams elsewhere", "true", []gw.Listener{listenerOf("udp", gw.UDPProtocolType, 53, "")}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			w.Secret = func(types.NamespacedName) *corev1.Secret {
				return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert"}, Data: map[string][]byte{"tls.crt": []byte("none")}}
			}
			g := w.gateway("a/g", append([]gw.Listener{listenerOf("https", gw.HTTPSProtocolType, 443, ""), listenerOf("http", gw.HTTPProtocolType, 80, "")}, test.others...)...)
			g.Annotations = map[string]string{references.HTTP3Annotation: test.asks}
			ports := Compile(w.Input).Ports[types.NamespacedName{Namespace: "a", Name: "g"}]
			got := slices.Contains(ports, Port{443, true})
			if datagrams := test.name == "datagrams"; got != (test.want || datagrams) || slices.Contains(ports, Port{80, true}) {
				t.Errorf("ports %v", ports)
			}
		})
	}
}
