package metrics

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// The versions that are served. Their types are the same, field by field; those of v1beta1
// are used for both, since k8s.io/metrics has v1 from v0.37 on.
const (
	group   = metricsv1beta1.GroupName
	v1beta1 = "v1beta1"
	v1      = "v1"
)

// resources is discovery's answer.
func resources(version string) *metav1.APIResourceList {
	return &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: group + "/" + version,
		APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}},
			{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
		},
	}
}

// ServeHTTP answers a request that the API server has authenticated and
// authorised: nobody else reaches the listener.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, _ := strings.CutPrefix(r.URL.Path, "/apis/"+group+"/")
	version, path, _ := strings.Cut(rest, "/")
	obj, err := s.answer(r, version, path)
	code := http.StatusOK
	if err != nil {
		status := asStatus(err)
		obj, code = status, int(status.Code)
	}
	write(w, r, obj, code)
}

func asStatus(err error) *metav1.Status {
	known := apierrors.APIStatus(nil)
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	return &status
}

// answer is the object or list that a path names, in a version.
func (s *Server) answer(r *http.Request, version, path string) (runtime.Object, error) {
	served := version == v1beta1 || version == v1
	if path == "" && served {
		return resources(version), nil
	}
	obj, err := s.metrics(r, served, path)
	if err == nil {
		setVersion(obj, version)
	}
	return obj, err
}

// metrics are those that a path names, without their version.
func (s *Server) metrics(r *http.Request, found bool, path string) (runtime.Object, error) {
	namespace := ""
	parts := strings.Split(path, "/")
	if len(parts) >= 3 && parts[0] == "namespaces" && parts[2] == "pods" {
		namespace, parts = parts[1], parts[2:]
	}
	name := ""
	if len(parts) == 2 {
		name = parts[1]
	}
	known := parts[0] == "nodes" || parts[0] == "pods" && (name == "" || namespace != "")
	if !found || !known || len(parts) > 2 {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "", 0, true)
	}
	of := schema.GroupResource{Group: group, Resource: parts[0]}
	if r.Method != http.MethodGet {
		return nil, apierrors.NewMethodNotSupported(of, strings.ToLower(r.Method))
	}
	q := r.URL.Query()
	if watch := q.Get("watch"); watch == "1" || watch == "true" {
		return nil, apierrors.NewMethodNotSupported(of, "watch")
	}
	past, err := wantsHistory(q.Get("history"), name)
	if err != nil {
		return nil, err
	}
	pick, err := selection(q.Get("labelSelector"), q.Get("fieldSelector"))
	switch {
	case err != nil:
		return nil, err
	case past && parts[0] == "nodes":
		return s.nodeHistory(name)
	case past:
		return s.podHistory(r, namespace, name)
	case parts[0] == "nodes" && name != "":
		return s.node(name)
	case parts[0] == "nodes":
		return s.nodeList(pick), nil
	case name != "":
		return s.pod(r, namespace, name)
	}
	return s.podList(r, namespace, pick)
}

// A selector is what a list is restricted to.
type selector struct {
	labels labels.Selector
	fields fields.Selector
}

func selection(label, field string) (p selector, err error) {
	if p.labels, err = labels.Parse(label); err != nil {
		return p, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %v", err))
	}
	if p.fields, err = fields.ParseSelector(field); err != nil {
		return p, apierrors.NewBadRequest(err.Error())
	}
	return p, nil
}

func (s *Server) node(name string) (runtime.Object, error) {
	o, there, err := s.nodes.GetStore().GetByKey(name)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	m := s.nodeMetrics(o.(*corev1.Node), time.Now())
	if m == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "nodemetrics"}, name)
	}
	return m, nil
}

func (s *Server) nodeList(pick selector) runtime.Object {
	list := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	now := time.Now()
	for _, o := range s.nodes.GetStore().List() {
		n := o.(*corev1.Node)
		if !pick.labels.Matches(labels.Set(n.Labels)) || !pick.fields.Matches(fields.Set{"metadata.name": n.Name}) {
			continue
		}
		if m := s.nodeMetrics(n, now); m != nil {
			list.Items = append(list.Items, *m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// nodeMetrics is nil for a node that has not been measured.
func (s *Server) nodeMetrics(n *corev1.Node, now time.Time) *metricsv1beta1.NodeMetrics {
	u, ok := s.store.nodeUsage(n.Name, now)
	if !ok {
		return nil
	}
	return &metricsv1beta1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.NewTime(now)},
		Timestamp:  metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: u.resources(),
	}
}

// running is which pods have metrics: as with metrics-server, those that run.
const running = "status.phase=Running"

// runningPod is the pod, if it runs.
func (s *Server) runningPod(r *http.Request, namespace, name string) (*corev1.Pod, error) {
	pod, err := s.client.CoreV1().Pods(namespace).Get(r.Context(), name, metav1.GetOptions{ResourceVersion: "0"})
	if err == nil && pod.Status.Phase != corev1.PodRunning {
		err = apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return pod, err
}

func (s *Server) pod(r *http.Request, namespace, name string) (runtime.Object, error) {
	pod, err := s.runningPod(r, namespace, name)
	if err != nil {
		return nil, err
	}
	m := s.podMetrics(pod, time.Now())
	if m == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "podmetrics"}, namespace+"/"+name)
	}
	return m, nil
}

// podList asks the API server's cache which pods there are, so that none are kept
// here for requests that are rare.
func (s *Server) podList(r *http.Request, namespace string, pick selector) (runtime.Object, error) {
	pods, err := s.client.CoreV1().Pods(namespace).List(r.Context(), metav1.ListOptions{
		LabelSelector: pick.labels.String(), ResourceVersion: "0",
		FieldSelector: fields.AndSelectors(fields.ParseSelectorOrDie(running), pick.fields).String(),
	})
	if err != nil {
		return nil, err
	}
	list := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{}}
	now := time.Now()
	for i := range pods.Items {
		if m := s.podMetrics(&pods.Items[i], now); m != nil {
			list.Items = append(list.Items, *m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// podMetrics is nil for a pod of which its own node has not sent two samples.
func (s *Server) podMetrics(pod *corev1.Pod, now time.Time) *metricsv1beta1.PodMetrics {
	used, ok := s.store.podUsage(pod.Spec.NodeName, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, now)
	if !ok {
		return nil
	}
	m := &metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, CreationTimestamp: metav1.NewTime(now)},
	}
	first := used[0]
	for _, c := range used {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: c.name, Usage: c.resources()})
		if c.at.Before(first.at) {
			first = c
		}
	}
	m.Timestamp, m.Window = metav1.NewTime(first.at), metav1.Duration{Duration: first.window}
	return m
}

// setVersion says of an object, and of those in a list, what they are.
func setVersion(obj runtime.Object, version string) {
	typed := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{Kind: kind, APIVersion: group + "/" + version}
	}
	switch o := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		o.TypeMeta = typed("NodeMetrics")
	case *metricsv1beta1.PodMetrics:
		o.TypeMeta = typed("PodMetrics")
	case *metricsv1beta1.NodeMetricsList:
		o.TypeMeta = typed("NodeMetricsList")
		for i := range o.Items {
			o.Items[i].TypeMeta = typed("NodeMetrics")
		}
	case *metricsv1beta1.PodMetricsList:
		o.TypeMeta = typed("PodMetricsList")
		for i := range o.Items {
			o.Items[i].TypeMeta = typed("PodMetrics")
		}
	}
}

func (u usage) resources() corev1.ResourceList {
	cpu := resource.NewScaledQuantity(int64(u.cpu), resource.Nano)
	memory := resource.NewQuantity(int64(u.memory), resource.BinarySI)
	return corev1.ResourceList{corev1.ResourceCPU: *cpu, corev1.ResourceMemory: *memory}
}

// write answers in the form that is asked for: protobuf, a table, or JSON.
func write(w http.ResponseWriter, r *http.Request, obj runtime.Object, code int) {
	accept := r.Header.Get("Accept")
	body, kind := []byte(nil), "application/json"
	err := error(nil)
	_, isStatus := obj.(*metav1.Status)
	_, isDiscovery := obj.(*metav1.APIResourceList)
	switch {
	case !isStatus && strings.Contains(accept, "as=Table"):
		body, err = json.Marshal(table(obj, r.URL.Query().Get("includeObject")))
	case strings.Contains(accept, protobufType) && !isDiscovery:
		kind = protobufType
		body, err = runtime.Encode(protobufCodec, obj)
	default:
		body, err = json.Marshal(obj)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
