package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CVE-2022-3294: a node whose address is the server's own is not reached
// through the server, whatever port is asked for.
func TestNodeProxyStaysOut(t *testing.T) {
	w := newWorld(t)
	for name, address := range map[string]string{"loop": "127.0.0.1", "link": "169.254.169.254", "six": "::1", "mapped": "::ffff:127.0.0.1"} {
		n, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		w.must(err)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
		_, err = w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
		w.must(err)
		w.must(w.Cache().Sync(w.ctx))
		for _, target := range []string{name, name + ":10250", name + ":80", "https:" + name + ":443"} {
			err := w.admin.CoreV1().RESTClient().Get().Resource("nodes").Name(target).SubResource("proxy").Do(w.ctx).Error()
			refused(t, err, "address not allowed")
		}
	}
}
