package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/apitest"
	"knarr/internal/run"
)

// A keyWorld is a cluster whose servers write down which Nodes keys are of.
type keyWorld struct {
	t      *testing.T
	client kubernetes.Interface
	stop   func()
}

// begin has some servers do so, in place of those before.
func (w *keyWorld) begin(servers int) {
	if w.stop != nil {
		w.stop()
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var group run.Group
	for range servers {
		group.Go("node keys", func() {
			if err := bindNodeKeys(ctx, w.client); err != nil {
				w.t.Error(err)
			}
		})
	}
	w.stop = func() { cancel(); group.Wait() }
	w.settle()
}

func (w *keyWorld) settle() { time.Sleep(5 * time.Second); synctest.Wait() }

func (w *keyWorld) join(name string) {
	w.t.Helper()
	j := joins{client: w.client, token: joinToken{secret: "s3cret"}}
	if err := j.remember(w.t.Context(), &joinRequest{Secret: "s3cret", NodeName: name}, "key"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *keyWorld) register(name string) types.UID {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	return n.UID
}

func (w *keyWorld) remove(name string) {
	w.t.Helper()
	if err := w.client.CoreV1().Nodes().Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// lets checks whose the record is, and whether the key lets its node in.
func (w *keyWorld) lets(when, name string, of types.UID, want bool) {
	w.t.Helper()
	have, err := w.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(w.t.Context(), keysName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if r := parseKeyRecord(have.Data[name]); r.key != "key" || r.node != of {
		w.t.Errorf("%s: the record of %s is %q, want that of Node %q", when, name, have.Data[name], of)
	}
	j := joins{client: w.client}
	if got, err := j.member(w.t.Context(), name, "key"); got != want || err != nil {
		w.t.Errorf("%s: the key of %s lets it in: %v, %v, want %v", when, name, got, err, want)
	}
}

// TestNodeKeys: a key is of the Node that its node registered first, also if that has
// renewed nothing yet, so that a Node made anew after it was deleted gives it no right.
func TestNodeKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		w := &keyWorld{t: t, client: api.Client(t)}
		w.join("before") // as releases did that knew of no UIDs
		before := w.register("before")
		w.lets("nobody wrote down the Node", "before", "", true)
		w.begin(3)
		defer func() { w.stop() }()
		w.lets("after an upgrade", "before", before, true)
		w.join("n")
		w.lets("it has no Node", "n", "", false)
		first := w.register("n")
		w.lets("registered", "n", first, true)
		w.register("no-key")

		w.remove("n")
		w.lets("deleted", "n", first, false)
		w.register("n")
		w.lets("made anew", "n", first, false)
		w.begin(2)
		w.lets("servers started again", "n", first, false)
		w.lets("servers started again", "before", before, true)

		// Whoever has the token joins again, before its Node is made or after.
		w.remove("n")
		w.join("n")
		w.lets("joined again", "n", "", false)
		w.lets("another joined", "before", before, true)
		second := w.register("n")
		w.lets("joined and registered again", "n", second, true)
		w.remove("n")
		third := w.register("n")
		w.lets("made anew again", "n", second, false)
		w.join("n")
		w.lets("joined with a Node made anew", "n", third, true)

		// Deleted and made anew while no server was there to see it.
		w.stop()
		w.remove("n")
		w.register("n")
		w.begin(1)
		w.lets("nobody saw it", "n", third, false)
	})
}
