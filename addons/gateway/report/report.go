// Package report says what would change for the Ingresses of a cluster in a move from
// ingress-nginx to this gateway. It reads Ingresses, IngressClasses, Services and
// ReferenceGrants, and of Secrets and ConfigMaps those that the Ingresses name, and writes
// a text.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/internal/references"
)

// nginx is the controller of ingress-nginx' classes, and its classes' usual name.
const nginx, usualClass = "k8s.io/ingress-nginx", "nginx"

// differences are those of every Ingress, whatever its annotations say.
var differences = []string{
	"A path of type ImplementationSpecific covers whole elements: /a covers /a and /a/b, and not /ab, which nginx let through.",
	"Expressions are RE2's: look-around and back references are refused.",
	"Request bodies have no limit unless proxy-body-size sets one; nginx' default was 1m.",
	"No header Strict-Transport-Security is added; nginx added one to answers by TLS.",
	"What the ConfigMap of ingress-nginx set for all Ingresses is not read.",
}

// Write lists what would change.
func Write(ctx context.Context, kube *rest.Config, w io.Writer) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return err
	}
	classes, err := client.NetworkingV1().IngressClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ingress classes: %w", err)
	}
	ingresses, err := client.NetworkingV1().Ingresses("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ingresses: %w", err)
	}
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	in := input{client: client, services: map[types.NamespacedName]*corev1.Service{}, secrets: map[types.NamespacedName]*corev1.Secret{}, maps: map[types.NamespacedName]*corev1.ConfigMap{}}
	for i := range services.Items {
		s := &services.Items[i]
		in.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for i := range ingresses.Items {
		if ofNginx(&ingresses.Items[i], classes.Items) {
			in.ingresses = append(in.ingresses, &ingresses.Items[i])
			if err := in.read(ctx, &ingresses.Items[i]); err != nil {
				return err
			}
		}
	}
	if in.grants, err = readGrants(ctx, client); err != nil {
		return err
	}
	_, err = io.WriteString(w, in.text())
	return err
}

// readGrants are the ReferenceGrants; none where the Gateway API is not installed.
func readGrants(ctx context.Context, client kubernetes.Interface) ([]gw.ReferenceGrant, error) {
	body, err := client.CoreV1().RESTClient().Get().AbsPath("/apis/"+gw.SchemeGroupVersion.String()+"/referencegrants").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	var list gw.ReferenceGrantList
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list reference grants: %w", err)
	}
	return list.Items, nil
}

// ofNginx says whether an Ingress is one that ingress-nginx serves.
func ofNginx(ing *networkingv1.Ingress, classes []networkingv1.IngressClass) bool {
	name := ing.Annotations[references.ClassAnnotation]
	if ing.Spec.IngressClassName != nil {
		name = *ing.Spec.IngressClassName
	}
	for i := range classes {
		if c := &classes[i]; c.Spec.Controller == nginx && (c.Name == name || name == "" && c.Annotations[references.DefaultClass] == "true") {
			return true
		}
	}
	return name == usualClass
}

// An input is what was read of a cluster.
type input struct {
	client    kubernetes.Interface
	ingresses []*networkingv1.Ingress
	services  map[types.NamespacedName]*corev1.Service
	secrets   map[types.NamespacedName]*corev1.Secret
	maps      map[types.NamespacedName]*corev1.ConfigMap
	grants    []gw.ReferenceGrant
	unread    int
}

// granted says whether a ReferenceGrant allows Ingresses of a namespace a Service.
func (in *input) granted(from string, to types.NamespacedName) bool {
	return slices.ContainsFunc(in.grants, func(g gw.ReferenceGrant) bool {
		return g.Namespace == to.Namespace && references.GrantedIngress(&g, from, to.Name)
	})
}

// shared are the hosts that Ingresses of several namespaces name, a line for each.
func (in *input) shared() (lines []string) {
	of := map[string][]string{} // the namespaces of a host, that of the oldest Ingress first
	oldest := slices.SortedStableFunc(slices.Values(in.ingresses), func(a, b *networkingv1.Ingress) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, ing := range oldest {
		for i := range ing.Spec.Rules {
			if host := strings.ToLower(ing.Spec.Rules[i].Host); host != "" && !slices.Contains(of[host], ing.Namespace) {
				of[host] = append(of[host], ing.Namespace)
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(of)) {
		if all := of[host]; len(all) > 1 {
			lines = append(lines, fmt.Sprintf("host %s is served for namespace %s alone; not for %s", host, all[0], strings.Join(all[1:], ", ")))
		}
	}
	return lines
}

// read gets what an Ingress names. What may not be read is counted and left out.
func (in *input) read(ctx context.Context, ing *networkingv1.Ingress) error {
	for name := range references.Secrets(ing) {
		s, err := in.client.CoreV1().Secrets(ing.Namespace).Get(ctx, name, metav1.GetOptions{})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			in.unread++
			continue
		}
		in.secrets[types.NamespacedName{Namespace: ing.Namespace, Name: name}] = s
	}
	for name := range references.ConfigMaps(ing) {
		m, err := in.client.CoreV1().ConfigMaps(ing.Namespace).Get(ctx, name, metav1.GetOptions{})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			in.unread++
			continue
		}
		in.maps[types.NamespacedName{Namespace: ing.Namespace, Name: name}] = m
	}
	return nil
}

// text is the report.
func (in *input) text() string {
	var b strings.Builder
	if len(in.ingresses) == 0 {
		return "No Ingress of this cluster is served by ingress-nginx.\n"
	}
	out := ingress.Compile(ingress.Input{
		Ingresses: in.ingresses, Domain: "cluster.local", Parsed: ingress.NewParsed(), Now: time.Now(),
		Service:   func(n types.NamespacedName) *corev1.Service { return in.services[n] },
		Granted:   in.granted,
		Secret:    func(n types.NamespacedName) *corev1.Secret { return in.secrets[n] },
		ConfigMap: func(n types.NamespacedName) *corev1.ConfigMap { return in.maps[n] },
	})
	slices.SortFunc(in.ingresses, func(a, b *networkingv1.Ingress) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	changed := 0
	for _, ing := range in.ingresses {
		lines := linesOf(ing, out.Verdicts[types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}])
		if len(lines) == 0 {
			continue
		}
		changed++
		fmt.Fprintf(&b, "Ingress %s/%s\n", ing.Namespace, ing.Name)
		for _, l := range lines {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	fmt.Fprintf(&b, "%d of %d Ingresses have something that changes.\n", changed, len(in.ingresses))
	if shared := in.shared(); len(shared) > 0 {
		b.WriteString("\nHosts that several namespaces name, which nginx served for all of them:\n")
		for _, l := range shared {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	if in.unread > 0 {
		fmt.Fprintf(&b, "%d Secrets and ConfigMaps are not there or may not be read.\n", in.unread)
	}
	b.WriteString("\nFor all Ingresses:\n")
	for _, d := range differences {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	return b.String()
}

// linesOf is what there is to say of an Ingress: what is not served first, then what is
// served otherwise.
func linesOf(ing *networkingv1.Ingress, v ingress.Verdict) (lines []string) {
	for _, f := range v.Faults {
		kind := "note:   "
		if f.Warning {
			kind = "changes:"
		}
		lines = append(lines, kind+" "+f.Text)
	}
	for _, name := range slices.Sorted(maps.Keys(ing.Annotations)) {
		if strings.HasPrefix(name, "cert-manager.io/") || name == "kubernetes.io/tls-acme" {
			lines = append(lines, "note:    annotation "+name+": cert-manager, where it runs, does what it did; "+references.ACMEAnnotation+": \"true\" gets certificates without it, if the servers have --acme-email")
		}
		short, ok := strings.CutPrefix(name, references.Prefix)
		if a, known := ingress.Annotations[short]; ok && known && a.Kind == ingress.Served && a.Note != "" {
			lines = append(lines, "note:    annotation "+name+": "+a.Note)
		}
	}
	return lines
}
