package controllermanager

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unlisted are resources that are no part of a scenario's end.
var unlisted = []string{"events", "leases", "flowschemas", "prioritylevelconfigurations", "componentstatuses"}

var (
	uid       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	access    = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
)

// state is every object there is, as JSON without what differs from run to run:
// times, revisions, and the random parts of names and ids.
func (c *cluster) state(chosen *regexp.Regexp) []string {
	c.Helper()
	lists, err := c.client.Discovery().ServerPreferredResources()
	c.no(err)
	var all []map[string]any
	for _, list := range lists {
		for _, res := range list.APIResources {
			if strings.Contains(res.Name, "/") || !slices.Contains(res.Verbs, "list") || slices.Contains(unlisted, res.Name) {
				continue
			}
			root := "/apis/" + list.GroupVersion
			if list.GroupVersion == "v1" {
				root = "/api/v1"
			}
			raw, err := c.client.CoreV1().RESTClient().Get().AbsPath(root, res.Name).SetHeader("Accept", "application/json").Do(c.ctx).Raw()
			c.no(err)
			var found struct{ Items []map[string]any }
			c.no(json.Unmarshal(raw, &found))
			for _, o := range found.Items {
				o["kind"] = res.Kind
				all = append(all, o)
			}
		}
	}
	return normal(all, chosen)
}

func normal(all []map[string]any, chosen *regexp.Regexp) []string {
	random, ids := []string{}, map[string]string{}
	for _, o := range all {
		meta := o["metadata"].(map[string]any)
		name := fmt.Sprint(meta["name"])
		if g, ok := meta["generateName"].(string); ok && g != "" && strings.HasPrefix(name, g) {
			random = append(random, name, g+"*")
			name = g + "*"
		}
		ids[fmt.Sprint(meta["uid"])] = fmt.Sprintf("uid of %v %s", o["kind"], name)
	}
	rename := strings.NewReplacer(random...)
	text := func(s string) string {
		s = uid.ReplaceAllStringFunc(s, func(id string) string {
			if of, ok := ids[id]; ok {
				return of
			}
			return "uid of none"
		})
		s = access.ReplaceAllString(rename.Replace(s), "kube-api-access-*")
		if chosen != nil {
			s = chosen.ReplaceAllString(s, "chosen")
		}
		return timestamp.ReplaceAllString(s, "time")
	}
	out := []string{}
	for _, o := range all {
		meta := o["metadata"].(map[string]any)
		if labels, ok := meta["labels"].(map[string]any); ok && labels["kubernetes.io/bootstrapping"] != nil {
			continue
		}
		observe(o["status"], meta["generation"])
		for _, volatile := range []string{"uid", "resourceVersion", "generation", "managedFields", "creationTimestamp"} {
			delete(meta, volatile)
		}
		b, err := json.Marshal(plain(o, text))
		if err != nil {
			panic(err) // it was JSON before
		}
		out = append(out, fmt.Sprint(o["kind"], " ", string(b)))
	}
	slices.Sort(out)
	return out
}

// observe makes observed generations true where they are the present one.
func observe(v, generation any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			observe(e, generation)
		}
	case map[string]any:
		for k, e := range v {
			if observe(e, generation); k == "observedGeneration" {
				v[k] = e == generation
			}
		}
	}
}

// secret are values that are made anew each time; that they are there counts.
var secret = []string{"token", "certificate", "request"}

// plain is a value with its texts changed by text and its lists in one order.
func plain(v any, text func(string) string) any {
	switch v := v.(type) {
	case string:
		return text(v)
	case []any:
		keyed := make([]string, len(v))
		for i := range v {
			b, err := json.Marshal(plain(v[i], text))
			if err != nil {
				panic(err)
			}
			keyed[i] = string(b)
		}
		slices.Sort(keyed)
		out := make([]json.RawMessage, len(keyed))
		for i, k := range keyed {
			out[i] = json.RawMessage(k)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if s, ok := e.(string); ok && (slices.Contains(secret, k) || strings.HasPrefix(k, "jws-kubeconfig-")) && s != "" {
				e = "there"
			}
			// The hash of a template shows a collision too.
			if m, ok := e.(map[string]any); k == "resourceVersion" || k == "collisionCount" || ok && len(m) == 0 {
				continue
			}
			if condition := v["lastTransitionTime"]; condition != nil && (k == "lastHeartbeatTime" || k == "lastProbeTime") {
				continue
			}
			out[text(k)] = plain(e, text)
		}
		return out
	}
	return v
}

// around cuts a line down to where it differs from other.
func around(line, other string) string {
	from := 0
	for from < len(line) && from < len(other) && line[from] == other[from] {
		from++
	}
	to := 0
	for to < len(line)-from && to < len(other)-from && line[len(line)-1-to] == other[len(other)-1-to] {
		to++
	}
	name, _, _ := strings.Cut(line, "{")
	if i := strings.Index(line, `"name":`); i > 0 {
		name += line[i:min(i+40, len(line))]
	}
	return name + " ... " + line[max(0, from-80):min(len(line), len(line)-to+80)]
}

// differ gives the lines of a that b does not have, and the other way round.
func differ(a, b []string) (missing, more []string) {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		if count[s]--; count[s] < 0 {
			more = append(more, s)
		}
	}
	for _, s := range a {
		if count[s] > 0 {
			missing = append(missing, s)
			count[s]--
		}
	}
	return missing, more
}

// makeAnew deletes the object of the path and creates another of its name, labels
// and spec.
func (c *cluster) makeAnew(path string) {
	c.Helper()
	client := c.client.CoreV1().RESTClient()
	get := func() map[string]any {
		raw, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(c.ctx).Raw()
		var o map[string]any
		if err != nil || json.Unmarshal(raw, &o) != nil {
			return nil
		}
		return o
	}
	o := get()
	if o == nil || o["metadata"].(map[string]any)["deletionTimestamp"] != nil {
		return
	}
	background := metav1.DeletePropagationBackground
	c.no(client.Delete().AbsPath(path).Body(&metav1.DeleteOptions{GracePeriodSeconds: new(int64), PropagationPolicy: &background}).Do(c.ctx).Error())
	if get() != nil {
		err := client.Patch("application/merge-patch+json").AbsPath(path).Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(c.ctx).Error()
		if !apierrors.IsNotFound(err) {
			c.no(err)
		}
	}
	meta, kept := o["metadata"].(map[string]any), map[string]any{}
	for _, key := range []string{"name", "namespace", "labels"} {
		if meta[key] != nil {
			kept[key] = meta[key]
		}
	}
	if all, ok := meta["annotations"].(map[string]any); ok && all[corev1.ServiceAccountNameKey] != nil {
		kept["annotations"] = map[string]any{corev1.ServiceAccountNameKey: all[corev1.ServiceAccountNameKey]}
		delete(o, "data")
	}
	o["metadata"] = kept
	delete(o, "status")
	if spec := o["spec"]; o["kind"] == "Job" { // these name its uid
		delete(kept, "labels")
		delete(spec.(map[string]any), "selector")
		delete(spec.(map[string]any)["template"].(map[string]any), "metadata")
	}
	if err := c.post(path[:strings.LastIndex(path, "/")], o); !apierrors.IsAlreadyExists(err) { // a controller makes it too
		c.no(err)
	}
}
