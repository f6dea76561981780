package gateway

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/internal/references"
	"knarr/internal/run"
)

// A grantWatch watches ReferenceGrants while an Ingress names a Service of another namespace.
type grantWatch struct {
	grants     cache.SharedIndexInformer // nil while none does
	endGrants  context.CancelFunc
	grantGroup run.Group
}

// ingress compiles Ingresses, with the ReferenceGrants if one asks for any.
func (w *world) ingress(ctx context.Context, in ingress.Input) (*ingress.Output, error) {
	asked := false
	in.Granted = func(from string, to types.NamespacedName) bool {
		asked = true
		return w.api.granted(from, to)
	}
	out := ingress.Compile(in)
	switch {
	case !asked:
		w.api.forgetGrants()
	case w.api.grants == nil:
		began, err := w.api.watchGrants(ctx)
		if err != nil || ctx.Err() != nil {
			return nil, err
		}
		if began {
			return ingress.Compile(in), nil
		}
	}
	return out, nil
}

// granted says whether a ReferenceGrant that is known allows Ingresses of a namespace a Service.
func (w *gatewayWatch) granted(from string, to types.NamespacedName) bool {
	if w.grants == nil {
		return false
	}
	there, _ := w.grants.GetIndexer().ByIndex(cache.NamespaceIndex, to.Namespace) // the index is there
	for _, o := range there {
		if g := o.(*gw.ReferenceGrant); references.GrantedIngress(g, from, to.Name) {
			return true
		}
	}
	return false
}

// grantsWait is how long all other routes wait for the grants of one. Those that come later
// are a change.
const grantsWait = 2 * time.Second

// watchGrants begins to watch, and waits until they are known. There are none as long as
// their kind is not served; once it is, everything is compiled anyway.
func (w *gatewayWatch) watchGrants(ctx context.Context) (began bool, err error) {
	if !w.known() {
		return false, nil
	}
	inf := w.client.informer("referencegrants", &gw.ReferenceGrant{})
	if _, err := inf.AddEventHandler(onChange(meaningful, func(metav1.Object) { w.add() })); err != nil {
		return false, err
	}
	watching, cancel := context.WithCancel(ctx)
	w.grants, w.endGrants = inf, cancel
	w.grantGroup.Go("gateway: watch referencegrants", func() { inf.RunWithContext(watching) })
	known, cancelWait := context.WithTimeout(ctx, grantsWait)
	defer cancelWait()
	cache.WaitForCacheSync(known.Done(), inf.HasSynced)
	return true, nil
}

// forgetGrants ends the watch.
func (w *gatewayWatch) forgetGrants() {
	if w.grants != nil {
		w.endGrants()
		w.grantGroup.Wait()
		w.grants = nil
	}
}
