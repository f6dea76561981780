package apiserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
)

func (w *world) log(pod string) error {
	return w.admin.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{}).Do(w.ctx).Error()
}

func (w *world) nodeProxy(target string) error {
	return w.admin.CoreV1().RESTClient().Get().Resource("nodes").Name(target).SubResource("proxy").Suffix("healthz").Do(w.ctx).Error()
}

// TestNodeIsNoAPIServer: a Node names its own address, and none of an API server
// is reached by it, nor by the address of a pod or of a Service's endpoint.
func TestNodeIsNoAPIServer(t *testing.T) {
	advertised := netip.MustParseAddrPort("127.77.0.1:6443")
	w, ca := withKubelets(t, func(c *apiserver.Config) {
		c.Advertise = advertised
		if _, _, _, err := c.Store.Put(t.Context(), "/registry/masterleases/10.9.9.9", []byte("x"), 0, 0); err != nil {
			t.Fatal(err)
		}
	})
	// This server has a second door, which has the certificate of a kubelet.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := w.Serve(ctx, l, &tls.Config{Certificates: []tls.Certificate{ca.issue(ofNode("listens"))}}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); serving.Wait() })
	answering, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	w.must(err)
	answering.Close()
	own := int32(l.Addr().(*net.TCPAddr).Port)

	for name, at := range map[string]struct {
		kind    corev1.NodeAddressType
		address string
		port    int32
	}{
		"advertised": {corev1.NodeInternalIP, "127.77.0.1", 6443},
		"mapped":     {corev1.NodeInternalIP, "::ffff:127.77.0.1", 6443},
		"listens":    {corev1.NodeInternalIP, "127.0.0.1", own},
		"nowhere":    {corev1.NodeInternalIP, "0.0.0.0", own},
		"named":      {corev1.NodeHostName, "localhost", own},
		"service":    {corev1.NodeInternalIP, "10.43.0.1", 443},
	} {
		w.at(name, at.kind, at.address, at.port)
		w.pod("p-"+name, name)
		refused(t, w.log("p-"+name), "address not allowed")
		for _, target := range []string{name, fmt.Sprintf("https:%s:%d", name, at.port)} {
			err := w.nodeProxy(target)
			refused(t, err, "address not allowed")
			if !apierrors.IsBadRequest(err) {
				t.Errorf("%s: refused with %v", target, apierrors.ReasonForError(err))
			}
		}
	}

	// The address of an API server elsewhere, whose port it shares.
	w.at("other", corev1.NodeInternalIP, "10.9.9.9", 6443)
	w.pod("p-other", "other")
	refused(t, w.log("p-other"), "address not allowed")

	pod := w.pod("p", "n")
	pod.Status.PodIP, pod.Status.PodIPs = "10.9.9.9", []corev1.PodIP{{IP: "10.9.9.9"}}
	_, err = w.admin.CoreV1().Pods("default").UpdateStatus(w.ctx, pod, metav1.UpdateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
	for resource, name := range map[string]string{"pods": "https:p:6443", "services": "https:kubernetes:443"} {
		err := w.admin.CoreV1().RESTClient().Get().Namespace("default").Resource(resource).Name(name).SubResource("proxy").Suffix("version").Do(w.ctx).Error()
		refused(t, err, "address not allowed")
	}
}

// TestHostNameOfNode: a name that leads to this host is refused to a proxy.
func TestHostNameOfNode(t *testing.T) {
	w, ca := withKubelets(t)
	w.at("n", corev1.NodeHostName, "localhost", ca.kubelet(ofNode("n")))
	refused(t, w.nodeProxy("n"), "address not allowed")
}

// TestKubeletIsOfItsNode: what answers at a Node's address must be that node, or
// one node gets what is meant for another, or an API server does.
func TestKubeletIsOfItsNode(t *testing.T) {
	w, ca := withKubelets(t, func(c *apiserver.Config) { c.KubeletNames = true })
	right := ca.kubelet(ofNode("right"))
	for name, at := range map[string]struct {
		port int32
		err  string
	}{
		"right":  {right, ""},
		"thief":  {right, `the certificate is of "system:node:right", not of "system:node:thief"`},
		"server": {ca.kubelet(pkix.Name{CommonName: "kube-apiserver"}), `the certificate is of "kube-apiserver"`},
		"user":   {ca.kubelet(pkix.Name{CommonName: "system:node:user"}), `the certificate is of "system:node:user"`},
	} {
		w.at(name, corev1.NodeInternalIP, "127.0.0.1", at.port)
		w.pod("p-"+name, name)
		if at.err == "" {
			w.must(w.log("p-" + name))
		}
	}
	w.must(w.log("p-right")) // whose connection is kept for the next, which is another's
	refused(t, w.log("p-thief"), `the certificate is of "system:node:right", not of "system:node:thief"`)
	refused(t, w.log("p-server"), `the certificate is of "kube-apiserver"`)
	refused(t, w.log("p-user"), `the certificate is of "system:node:user"`)
}
