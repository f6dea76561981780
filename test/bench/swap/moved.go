package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"knarr/test/bench/rig"
)

const movedNamespace = "oracle-corpus" // as objects of rig.Programs.Kinds say

// serversOwn are objects that each API server writes itself when it starts.
var serversOwn = []string{
	"leases.coordination.k8s.io kube-system/apiserver-",  // its identity
	"endpoints default/kubernetes",                       // its address
	"endpointslices.discovery.k8s.io default/kubernetes", // the same
	"ipaddresses.networking.k8s.io /10.200.9.9",          // of no Service: upstream's repair removes it
}

// A stored resource is one that can be listed.
type stored struct {
	name       string // plural.group
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
}

// moved has one side's etcd and API server write an object of each kind, the
// other's read all there is from the same data, and the first's again.
func moved(own bool) func(context.Context, rig.Programs, string) (string, error) {
	return func(ctx context.Context, p rig.Programs, dir string) (string, error) {
		c, err := rig.ControlPlane(ctx, p, dir, own)
		if err != nil {
			return "", fmt.Errorf("start: %w", err)
		}
		defer c.Stop()
		all, err := resources(c)
		if err != nil {
			return "", err
		}
		if err := fill(ctx, c, p.Kinds, all); err != nil {
			return "", err
		}
		want, err := contents(ctx, c, all)
		if err != nil {
			return "", err
		}
		for _, side := range []bool{!own, own} {
			if err := c.Move(ctx, p, side); err != nil {
				return "", err
			}
			got, err := contents(ctx, c, all)
			if err != nil {
				return "", err
			}
			if err := same(want, got); err != nil {
				return "", fmt.Errorf("moved, knarr's %v: %w", side, err)
			}
		}
		return fmt.Sprintf("%d objects of %d resources there and back", len(want), len(all)), c.Alive()
	}
}

// resources are those that can be listed and created.
func resources(c *rig.Cluster) (all []stored, err error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "create") {
				gvr := gv.WithResource(r.Name)
				all = append(all, stored{gvr.GroupResource().String(), gvr, r.Kind, r.Namespaced})
			}
		}
	}
	return all, nil
}

// fill creates the objects of the file kinds.
func fill(ctx context.Context, c *rig.Cluster, kinds string, all []stored) error {
	client, err := dynamicFor(c)
	if err != nil {
		return err
	}
	if err := prepareNamespace(ctx, c); err != nil {
		return err
	}
	data, err := os.ReadFile(kinds)
	if err != nil {
		return err
	}
	var valid map[string]map[string]any
	if err := yaml.Unmarshal(data, &valid); err != nil {
		return err
	}
	made := 0
	for _, r := range all {
		content := valid[r.name]
		if content == nil {
			continue
		}
		o := &unstructured.Unstructured{Object: content}
		o.SetGroupVersionKind(r.gvr.GroupVersion().WithKind(r.kind))
		if o.GetName() == "" {
			o.SetName("oracle-base")
		}
		var to dynamic.ResourceInterface = client.Resource(r.gvr)
		if r.namespaced {
			to = client.Resource(r.gvr).Namespace(movedNamespace)
		}
		switch _, err := to.Create(ctx, o, metav1.CreateOptions{}); {
		case err == nil:
			made++
		case !apierrors.IsAlreadyExists(err): // by another version
			return fmt.Errorf("create %s: %w", r.name, err)
		}
	}
	if made < 50 {
		return fmt.Errorf("only %d kinds of %s were created", made, kinds)
	}
	return nil
}

func prepareNamespace(ctx context.Context, c *rig.Cluster) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return errors.Join(create(ctx, client, "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, movedNamespace)),
		create(ctx, client, "/api/v1/namespaces/"+movedNamespace+"/serviceaccounts", `{"metadata":{"name":"default"},"automountServiceAccountToken":false}`))
}

func create(ctx context.Context, client *kubernetes.Clientset, path, body string) error {
	return client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
}

// contents is every object but the servers' own: its JSON by resource, namespace,
// name and version.
func contents(ctx context.Context, c *rig.Cluster, all []stored) (map[string][]byte, error) {
	client, err := dynamicFor(c)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, r := range all {
		list, err := client.Resource(r.gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", r.gvr, err)
		}
		for _, o := range list.Items {
			key := fmt.Sprintf("%s %s/%s", r.name, o.GetNamespace(), o.GetName())
			if slices.ContainsFunc(serversOwn, func(own string) bool { return strings.HasPrefix(key, own) }) {
				continue
			}
			text, err := json.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			out[key+" of "+r.gvr.Version] = text
		}
	}
	return out, nil
}

func dynamicFor(c *rig.Cluster) (*dynamic.DynamicClient, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	cfg.ContentType, cfg.AcceptContentTypes = "application/json", "application/json"
	return dynamic.NewForConfig(cfg)
}

// same is an error that names what was there and is not, or is another.
func same(want, got map[string][]byte) error {
	var faults []error
	for key, text := range want {
		switch now, ok := got[key]; {
		case !ok:
			faults = append(faults, fmt.Errorf("%s is not there", key))
		case !bytes.Equal(now, text):
			faults = append(faults, fmt.Errorf("%s was %s and is %s", key, text, now))
		}
	}
	return errors.Join(faults...)
}
