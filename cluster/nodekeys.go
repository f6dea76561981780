package cluster

import (
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"knarr/internal/controller"
)

// keysName is the ConfigMap of which key each joined node has.
const keysName = "knarr-node-keys"

// A keyRecord is what the ConfigMap has of a node: the hash of its key, when it joined,
// and the UID of its Node. It has no UID until the node has registered, and while a
// release wrote it that did not know of UIDs.
type keyRecord struct {
	key, since string
	node       types.UID
}

// parseKeyRecord reads a record; of what is not there the field is "". Pure.
func parseKeyRecord(text string) (r keyRecord) {
	key, rest, _ := strings.Cut(text, " ")
	since, node, _ := strings.Cut(rest, " ")
	return keyRecord{key, since, types.UID(node)}
}

func (r keyRecord) String() string {
	return strings.TrimSpace(r.key + " " + r.since + " " + string(r.node))
}

// of says whether a Node that is there is the one of the record. One that was made anew
// under the name of a deleted Node has another UID. Pure.
func (r keyRecord) of(node types.UID) bool { return r.node == "" || r.node == node }

// bindNodeKeys writes down which Node each key is of, as soon as the Node is there, so
// that the key loses its right with this Node and not with its name: a node whose
// certificate is still valid makes its Node anew after it was deleted. Every server
// does so, and finds done what another did.
func (s *Server) bindNodeKeys(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.as("knarr", "system:knarr", user.SystemPrivilegedGroup))
	if err != nil {
		return err
	}
	return bindNodeKeys(ctx, client)
}

func bindNodeKeys(ctx context.Context, client kubernetes.Interface) error {
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(nameAndUID))
	nodes := f.Core().V1().Nodes().Informer()
	b := &keyBinder{client: client, nodes: nodes.GetStore()}
	ctx, cancel := context.WithCancel(ctx)
	f.StartWithContext(ctx)
	defer f.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	c := &controller.Controller[string]{
		Name: "node-keys", Workers: 1,
		Sources:   []controller.Source[string]{{Informer: nodes, Keys: func(o metav1.Object) []string { return []string{o.GetName()} }}},
		Reconcile: b.reconcile,
	}
	return c.Run(ctx)
}

// nameAndUID is all of a Node that matters here: there are many, and they are large.
func nameAndUID(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}, nil
	}
	return o, nil
}

// A keyBinder is bindNodeKeys' work. It is for one goroutine.
type keyBinder struct {
	client kubernetes.Interface
	nodes  cache.Store
	// seen are the Nodes whose records were looked at: a record of a Node that is there
	// does not lose its UID.
	seen map[string]types.UID
}

// reconcile looks at the records of all Nodes that it has not seen, if the named one is
// such: at a start there are many, and all records are in one object.
func (b *keyBinder) reconcile(ctx context.Context, name string) (time.Duration, error) {
	o, there, err := b.nodes.GetByKey(name)
	if err != nil || !there || b.seen[name] == o.(*corev1.Node).UID {
		return 0, err
	}
	now, fresh := map[string]types.UID{}, []string{}
	for _, o := range b.nodes.List() {
		n := o.(*corev1.Node)
		now[n.Name] = n.UID
		if b.seen[n.Name] != n.UID {
			fresh = append(fresh, n.Name)
		}
	}
	if err := b.bind(ctx, fresh); err != nil {
		return 0, err
	}
	b.seen = now
	return 0, nil
}

// bind adds the UIDs of Nodes to the records that have none. A Node is read after the
// records, and they are written only if they are still the same: so the Node is none of
// before the node joined.
func (b *keyBinder) bind(ctx context.Context, nodes []string) error {
	records := b.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := records.Get(ctx, keysName, metav1.GetOptions{})
		if err != nil {
			return ignoreNotFound(err)
		}
		bound := maps.Clone(have.Data)
		for _, name := range nodes {
			r := parseKeyRecord(have.Data[name])
			if r.key == "" || r.node != "" {
				continue
			}
			node, err := b.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				r.node = node.UID
				bound[name] = r.String()
			} else if ignoreNotFound(err) != nil {
				return err
			}
		}
		if maps.Equal(bound, have.Data) {
			return nil
		}
		have.Data = bound
		_, err = records.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}
