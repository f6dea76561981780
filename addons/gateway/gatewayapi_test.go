package gateway

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/need"
	"knarr/internal/programs"
)

// A Gateway gets a Service and its status, and the Secret of its listener can be read.
func TestGateway(t *testing.T) {
	if _, err := programs.Read(programs.Definitions); errors.Is(err, programs.ErrMissing) {
		need.Skip(t, err)
	}
	inWorld(t, false, func(w *testWorld) {
		w.node("n1", "10.0.0.1")
		w.service("web")
		w.slice("web", "10.42.0.5")
		w.secret("cert", "a.example")
		w.secret("private", "b.example")
		api, err := newAPIClient(w.api.Config())
		w.no(err)
		time.Sleep(time.Minute)
		g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"}, Spec: gw.GatewaySpec{GatewayClassName: ClassName, Listeners: []gw.Listener{
			{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "cert"}}}},
		}}}
		w.no(api.rest.Post().Namespace("default").Resource("gateways").Body(g).Do(w.ctx).Error())
		time.Sleep(10 * time.Second)
		secrets := w.api.Client(t, nodeUser).CoreV1().Secrets("default")
		if _, err := secrets.Get(w.ctx, "cert", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := secrets.Get(w.ctx, "private", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Error(err)
		}
		got := &gw.Gateway{}
		w.no(api.rest.Get().Namespace("default").Resource("gateways").Name("g").Do(w.ctx).Into(got))
		if len(got.Status.Listeners) != 1 || len(got.Status.Conditions) != 3 {
			t.Errorf("%+v", got.Status)
		}
	})
}
