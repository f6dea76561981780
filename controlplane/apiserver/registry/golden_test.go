package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
)

const goldenNamespace = "golden"

// A goldenCase is one document of testdata/cases/<plural>[.[<version>.]<group>].yaml: an
// object to create and perhaps a merge patch to it, or to its subresource.
type goldenCase struct {
	Name   string          `json:"name"`
	Create json.RawMessage `json:"create"`
	Update json.RawMessage `json:"update,omitempty"`
	Sub    string          `json:"sub,omitempty"`
}

// A goldenAnswer is what the reference API server made of a case.
type goldenAnswer struct {
	Object map[string]any       `json:"object,omitempty"`
	Causes []metav1.StatusCause `json:"causes,omitempty"`
	Other  *metav1.Status       `json:"other,omitempty"`
	// Cells are what `kubectl get -o wide` would show.
	Cells    []any    `json:"cells,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// TestGolden holds every case to the reference's recorded answer.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "cases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	if *update {
		prepareOracle(t)
	}
	for _, file := range files {
		r := resourceOfFile(t, file)
		answers := map[string]goldenAnswer{}
		golden := strings.TrimSuffix(file, ".yaml") + ".json"
		cases := readCases(t, file)
		if *update {
			for _, c := range cases {
				answers[c.Name] = ask(t, r, c)
			}
			record(t, golden, answers)
		}
		load(t, golden, &answers)
		for _, c := range cases {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml")+"/"+c.Name, func(t *testing.T) {
				want, ok := answers[c.Name]
				if !ok {
					t.Fatal("no answer recorded")
				}
				compare(t, replay(t, r, c, want), want)
			})
		}
	}
}

func resourceOfFile(t *testing.T, file string) Resource {
	t.Helper()
	plural, group, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), ".")
	for _, r := range Resources {
		if r.GVR().Resource == plural && (group == "" || r.GVR().Group == group || r.GVR().Version+"."+r.GVR().Group == group) {
			return r
		}
	}
	t.Fatalf("%s names no resource", file)
	return nil
}

func readCases(t *testing.T, file string) (cases []goldenCase) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[string]bool{}
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		var c goldenCase
		if err := d.Decode(&c); err == io.EOF {
			return cases
		} else if err != nil {
			t.Fatalf("%s: after %d cases: %v", file, len(cases), err)
		}
		if c.Name == "" {
			continue
		}
		if seen[c.Name] {
			t.Fatalf("%s: two cases %q", file, c.Name)
		}
		seen[c.Name] = true
		cases = append(cases, c)
	}
}

// body completes a case's object with its kind and a name.
func (c goldenCase) body(t *testing.T, r Resource) []byte {
	t.Helper()
	obj := map[string]any{}
	if err := json.Unmarshal(c.Create, &obj); err != nil {
		t.Fatal(err)
	}
	obj["apiVersion"], obj["kind"] = r.GVK().GroupVersion().String(), r.GVK().Kind
	meta, _ := obj["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		obj["metadata"] = meta
	}
	if _, ok := meta["name"]; !ok {
		meta["name"] = "golden"
	}
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func prepareOracle(t *testing.T) {
	var ignored map[string]any
	ns := fmt.Sprintf(`{"metadata":{"name":%q}}`, goldenNamespace)
	oracle(t, "POST", "/api/v1/namespaces", []byte(ns), "application/json", &ignored)
	sa := `{"metadata":{"name":"default"},"automountServiceAccountToken":false}`
	oracle(t, "POST", "/api/v1/namespaces/"+goldenNamespace+"/serviceaccounts", []byte(sa), "application/json", &ignored)
}

// ask plays a case to the reference API server.
func ask(t *testing.T, r Resource, c goldenCase) goldenAnswer {
	t.Helper()
	path, body := collectionPath(r, goldenNamespace), c.body(t, r)
	if c.Update == nil {
		a := answer(t, "POST", path+"?dryRun=All", body)
		if a.Object != nil {
			var table metav1.Table
			oracle(t, "POST", path+"?dryRun=All", body, "application/json;as=Table;v=v1;g=meta.k8s.io", &table)
			a.Cells = timeless(r, table.Rows[0].Cells)
			if r == Resource(jobs) {
				a.Cells = nil // the selector has the UID of another try
			}
		}
		return a
	}
	made := answer(t, "POST", path, body)
	if made.Object == nil {
		t.Fatalf("%s: %s: create for update: %+v", r.GVR(), c.Name, made)
	}
	one := path + "/" + made.Object["metadata"].(map[string]any)["name"].(string)
	defer func() {
		var ignored map[string]any
		oracle(t, "DELETE", one+"?gracePeriodSeconds=0&propagationPolicy=Background", nil, "application/json", &ignored)
		oracle(t, "PATCH", one, []byte(`{"metadata":{"finalizers":null}}`), "application/json", &ignored)
	}()
	at := one
	if c.Sub != "" {
		at += "/" + c.Sub
	}
	a := answer(t, "PATCH", at+"?dryRun=All", c.Update)
	if a.Object != nil {
		var table metav1.Table
		oracle(t, "PATCH", at+"?dryRun=All", c.Update, "application/json;as=Table;v=v1;g=meta.k8s.io", &table)
		if len(table.Rows) > 0 {
			a.Cells = timeless(r, table.Rows[0].Cells)
		}
	}
	return a
}

func answer(t *testing.T, method, path string, body []byte) (a goldenAnswer) {
	t.Helper()
	var got json.RawMessage
	code, warnings := oracle(t, method, path, body, "application/json", &got)
	if code < 300 {
		var meta metav1.PartialObjectMetadata
		if err := json.Unmarshal(got, &meta); err == nil && meta.UID != "" {
			got = bytes.ReplaceAll(got, []byte(meta.UID), []byte(goldenUID))
		}
		if err := json.Unmarshal(got, &a.Object); err != nil {
			t.Fatal(err)
		}
		tidy(a.Object)
		a.Warnings = warnings
		return a
	}
	var status metav1.Status
	if err := json.Unmarshal(got, &status); err != nil {
		t.Fatal(err)
	}
	if status.Reason != metav1.StatusReasonInvalid {
		a.Other = &status
		return a
	}
	a.Causes = status.Details.Causes
	return a
}

// tidy takes out what differs from run to run.
func tidy(obj map[string]any) {
	meta := obj["metadata"].(map[string]any)
	for _, k := range []string{"managedFields", "uid", "creationTimestamp", "resourceVersion", "selfLink"} {
		delete(meta, k)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "lastTransitionTime")
			delete(v, "lastPhaseTransitionTime")
			delete(v, "lastProbeTime")
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(obj)
}

// replay does what the handlers do around a Resource.
func replay(t *testing.T, r Resource, c goldenCase, want goldenAnswer) goldenAnswer {
	t.Helper()
	ctx := request.WithUser(context.Background(), &user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	obj := r.New()
	if err := json.Unmarshal(c.body(t, r), obj); err != nil {
		t.Fatal(err)
	}
	if r.Namespaced() {
		obj.SetNamespace(goldenNamespace)
	}
	obj.SetUID(goldenUID)
	obj.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	r.Defaults(obj)
	admit(obj)
	allocate(obj, want.Object)
	r.PrepareObject(ctx, obj, nil)
	errs := append(r.CheckMetadata(obj, nil), r.ValidateObject(ctx, obj, nil)...)
	if c.Update == nil {
		a := outcome(t, obj, errs)
		if len(errs) == 0 {
			a.Cells, a.Warnings = timeless(r, r.Row(obj)), r.Warnings(ctx, obj, nil)
			if text := r.Traits().Deprecated; text != "" {
				a.Warnings = append(a.Warnings, text)
			}
		}
		return a
	}
	if len(errs) > 0 {
		t.Fatalf("create before update: %v", errs)
	}
	old := obj
	old.SetResourceVersion("1")
	before, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	after, err := jsonpatch.MergePatch(before, c.Update)
	if err != nil {
		t.Fatal(err)
	}
	obj = r.New()
	if err := json.Unmarshal(after, obj); err != nil {
		t.Fatal(err)
	}
	r.Defaults(obj)
	allocate(obj, want.Object)
	if c.Sub == "" {
		if r == Resource(pods) {
			admit(obj)
		}
		r.PrepareObject(ctx, obj, old)
		errs = append(r.CheckMetadata(obj, old), r.ValidateObject(ctx, obj, old)...)
	} else {
		subs := r.Subresources()
		i := slices.IndexFunc(subs, func(s Sub) bool { return s.Name == c.Sub })
		if i < 0 || !subs[i].Writes {
			t.Fatalf("no subresource %s", c.Sub)
		}
		subs[i].Prepare(ctx, obj, old)
		if subs[i].Validate != nil {
			errs = append(ValidateMetadataUpdate(obj, old, r.Namespaced()), subs[i].Validate(ctx, obj, old)...)
		}
	}

	a := outcome(t, obj, errs)
	if len(errs) == 0 {
		a.Cells = timeless(r, r.Row(obj))
		if c.Sub == "" {
			a.Warnings = r.Warnings(ctx, obj, old)
		}
	}
	return a
}

// timeless blanks the cells that tell time, or were allocated.
func timeless(r Resource, cells []any) []any {
	cells = append([]any(nil), cells...)
	for i, d := range r.ColumnDefinitions() {
		switch d.Name {
		case "Age", "Last Seen", "First Seen", "Created At":
			cells[i] = ""
		}
	}
	return cells[:len(r.ColumnDefinitions())]
}

const goldenUID = "00000000-0000-0000-0000-000000000001"

func outcome(t *testing.T, obj Object, errs field.ErrorList) (a goldenAnswer) {
	t.Helper()
	for _, e := range Unversioned(errs) {
		a.Causes = append(a.Causes, metav1.StatusCause{Type: metav1.CauseType(e.Type), Message: e.ErrorBody(), Field: e.Field})
	}
	if len(errs) > 0 {
		return a
	}
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &a.Object); err != nil {
		t.Fatal(err)
	}
	tidy(a.Object)
	return a
}

// admit does to objects what admission does by default.
func admit(obj Object) {
	if n, ok := obj.(*corev1.Node); ok {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	switch obj.(type) {
	case *corev1.PersistentVolumeClaim:
		obj.SetFinalizers([]string{"kubernetes.io/pvc-protection"})
	case *storagev1.VolumeAttributesClass:
		obj.SetFinalizers([]string{"kubernetes.io/vac-protection"})
	case *corev1.PersistentVolume:
		obj.SetFinalizers([]string{"kubernetes.io/pv-protection"})
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = "default", "default"
	}
	p.Spec.Priority = new(int32(0))
	if p.Spec.PreemptionPolicy == nil {
		p.Spec.PreemptionPolicy = new(corev1.PreemptLowerPriority)
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerated := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
		}
	}
}

// allocate gives a Service what the reference gave it.
func allocate(obj Object, want map[string]any) {
	s, ok := obj.(*corev1.Service)
	if !ok || s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	var given corev1.Service
	if data, err := json.Marshal(want); err == nil {
		_ = json.Unmarshal(data, &given)
	}
	NormalizeClusterIPs(s, nil)
	if given.Spec.IPFamilyPolicy != nil {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = given.Spec.IPFamilyPolicy, given.Spec.IPFamilies
	}
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIP = orElse(given.Spec.ClusterIP, "10.43.99.99")
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	for i := range s.Spec.Ports {
		if i < len(given.Spec.Ports) && s.Spec.Ports[i].NodePort == 0 {
			s.Spec.Ports[i].NodePort = given.Spec.Ports[i].NodePort
		}
	}
	if s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = given.Spec.HealthCheckNodePort
	}
}

func compare(t *testing.T, got, want goldenAnswer) {
	t.Helper()
	if want.Other != nil {
		t.Fatalf("the recorded answer is no outcome of this package: %s", want.Other.Message)
	}
	lines := func(a goldenAnswer) []string {
		var out []string
		for _, c := range a.Causes {
			out = append(out, fmt.Sprintf("%s: %s: %s", c.Field, c.Type, c.Message))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	if g, w := lines(got), lines(want); !slices.Equal(g, w) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(g, "\n\t"), strings.Join(w, "\n\t"))
	}
	slices.Sort(got.Warnings)
	slices.Sort(want.Warnings)
	if !slices.Equal(got.Warnings, want.Warnings) {
		t.Errorf("warnings:\ngot  %q\nwant %q", got.Warnings, want.Warnings)
	}
	if len(want.Cells) == 0 { // some subresources have no table
		got.Cells = want.Cells
	}
	if g, w := asJSON(t, got.Cells), asJSON(t, want.Cells); g != w {
		t.Errorf("cells:\ngot  %s\nwant %s", g, w)
	}
	if !reflect.DeepEqual(prune(got.Object), prune(want.Object)) {
		t.Errorf("objects differ (- want, + got):\n%s", diff.Diff(want.Object, got.Object))
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// prune drops empty values: absent and empty are the same to clients.
func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if p := prune(x); p != nil {
				out[k] = p
			}
		}
		return out
	case []any:
		if len(v) == 0 {
			return nil
		}
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = prune(x)
		}
		return out
	}
	return v
}
