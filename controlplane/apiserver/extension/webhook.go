package extension

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	webhookTime  = 30 * time.Second
	webhookBytes = 16 << 20 // the largest answer read
)

// A Resolver finds where a Service's port can be reached: host and port.
type Resolver func(namespace, name string, port int32) (string, error)

// A converter asks a webhook to convert objects.
type converter struct {
	url    string
	client *http.Client
	v1     bool // else v1beta1
	err    error
}

// newConverter is nil when the definition has no webhook. What is wrong with it
// is told when it is asked.
func newConverter(crd *apiextensionsv1.CustomResourceDefinition, resolve Resolver) *converter {
	w := webhookOf(crd)
	if w == nil {
		return nil
	}
	c := &converter{}
	known := false
	for _, v := range w.ConversionReviewVersions {
		if v == "v1" || v == "v1beta1" {
			c.v1, known = v == "v1", true
			break
		}
	}
	if !known {
		c.err = errors.New("no supported conversion review versions")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(w.ClientConfig.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(w.ClientConfig.CABundle) {
			c.err = errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	transport := &http.Transport{
		TLSClientConfig: config, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 8, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 1 << 20,
	}
	switch s := w.ClientConfig.Service; {
	case w.ClientConfig.URL != nil:
		c.url = *w.ClientConfig.URL
	case s != nil:
		port, path := int32(443), ""
		if s.Port != nil {
			port = *s.Port
		}
		if s.Path != nil {
			path = *s.Path
		}
		host := s.Name + "." + s.Namespace + ".svc"
		config.ServerName = host
		u := url.URL{Scheme: "https", Host: fmt.Sprintf("%s:%d", host, port), Path: path}
		c.url = u.String()
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr, err := resolve(s.Namespace, s.Name, port)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	default:
		c.err = errors.New("webhook configuration must have either service or URL")
	}
	c.client = &http.Client{
		Transport: transport, Timeout: webhookTime,
		// An answer that sends us elsewhere could reach what its author cannot.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// close drops connections that are kept for later.
func (c *converter) close() {
	if c != nil && c.client != nil {
		c.client.CloseIdleConnections()
	}
}

// review is a ConversionReview in either version: they are written alike.
type review struct {
	Kind       string          `json:"kind"`
	APIVersion string          `json:"apiVersion"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID     types.UID        `json:"uid"`
	Desired string           `json:"desiredAPIVersion"`
	Objects []map[string]any `json:"objects"`
}

type reviewResponse struct {
	UID     types.UID         `json:"uid"`
	Objects []json.RawMessage `json:"convertedObjects"`
	Result  metav1.Status     `json:"result"`
}

// convert has one object converted; what only the store may change stays.
func (c *converter) convert(u *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	gvk := u.GroupVersionKind()
	if len(u.Object) == 2 { // kind and apiVersion: nothing to convert
		out := &unstructured.Unstructured{Object: map[string]any{}}
		out.SetGroupVersionKind(to.WithKind(gvk.Kind))
		return out, nil
	}
	if c.err != nil {
		return nil, c.err
	}
	objects, err := c.ask(u, to)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %v", gvk, err)
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", gvk, len(objects), 1)
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(objects[0]); err != nil {
		return nil, err
	}
	found := out.GroupVersionKind()
	switch {
	case found.GroupVersion() != to:
		return nil, fmt.Errorf("conversion webhook for %v returned invalid object at index 0: invalid groupVersion (expected %v, received %v)", gvk, to, found.GroupVersion())
	case found.Kind != gvk.Kind:
		return nil, fmt.Errorf("conversion webhook for %v returned invalid object at index 0: invalid kind (expected %v, received %v)", gvk, gvk.Kind, found.Kind)
	}
	if err := sameIdentity(u, out); err != nil {
		return nil, fmt.Errorf("conversion webhook for %v returned invalid object: %v", gvk, err)
	}
	if err := keepMeta(u, out); err != nil {
		return nil, fmt.Errorf("conversion webhook for %v returned invalid metadata: %v", gvk, err)
	}
	return out, nil
}

func (c *converter) ask(u *unstructured.Unstructured, to schema.GroupVersion) ([]json.RawMessage, error) {
	version := apiextensionsv1.GroupName + "/v1beta1"
	if c.v1 {
		version = apiextensionsv1.GroupName + "/v1"
	}
	q := review{Kind: "ConversionReview", APIVersion: version, Request: &reviewRequest{
		UID: uuid.NewUUID(), Desired: to.String(), Objects: []map[string]any{u.Object}}}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	a, err := c.post(body)
	if err != nil {
		return nil, err
	}
	// Upstream trusts answers in v1beta1 to be what they are.
	if found := schema.FromAPIVersionAndKind(a.APIVersion, a.Kind); c.v1 && found != schema.FromAPIVersionAndKind(version, "ConversionReview") {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", schema.FromAPIVersionAndKind(version, "ConversionReview"), found)
	}
	r := a.Response
	switch {
	case r == nil:
		return nil, errors.New("no response provided")
	case c.v1 && r.UID != q.Request.UID:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", q.Request.UID, r.UID)
	case r.Result.Status != metav1.StatusSuccess && r.Result.Message != "":
		return nil, errors.New(r.Result.Message)
	case r.Result.Status != metav1.StatusSuccess:
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", r.Result.Status)
	}
	return r.Objects, nil
}

func (c *converter) post(body []byte) (*review, error) {
	ctx, cancel := context.WithTimeout(context.Background(), webhookTime)
	defer cancel()
	at := c.url + "?timeout=" + webhookTime.String()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, webhookBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > webhookBytes:
		return nil, fmt.Errorf("the answer is longer than %d bytes", webhookBytes)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, errors.New(refusal(resp.StatusCode, data))
	}
	a := &review{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, err
	}
	return a, nil
}

// refusal is what an answer that is no success says.
func refusal(code int, data []byte) string {
	var status metav1.Status
	if json.Unmarshal(data, &status) == nil && status.Message != "" {
		return status.Message
	}
	switch code {
	case http.StatusNotFound:
		return "the server could not find the requested resource"
	case http.StatusInternalServerError:
		return fmt.Sprintf("an error on the server (%q) has prevented the request from succeeding", bytes.TrimSpace(data))
	}
	return fmt.Sprintf("the server responded with the status code %d but did not return more information", code)
}

func sameIdentity(in, out *unstructured.Unstructured) error {
	for _, p := range []struct{ name, want, got string }{
		{"kind", in.GetKind(), out.GetKind()}, {"name", in.GetName(), out.GetName()},
		{"namespace", in.GetNamespace(), out.GetNamespace()}, {"UID", string(in.GetUID()), string(out.GetUID())},
	} {
		if p.want != p.got {
			return fmt.Errorf("must have the same %s: %s != %s", p.name, p.want, p.got)
		}
	}
	return nil
}

// keepMeta gives the converted object the metadata it had, but for labels and
// annotations.
func keepMeta(in, out *unstructured.Unstructured) error {
	value, ok := out.Object["metadata"]
	if !ok {
		return errors.New("missing metadata in converted object")
	}
	answered, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", value)
	}
	meta, ok := runtime.DeepCopyJSONValue(in.Object["metadata"]).(map[string]any)
	if !ok {
		meta = map[string]any{}
	}
	out.Object["metadata"] = meta
	for _, name := range []string{"labels", "annotations"} {
		value, ok := answered[name]
		if !ok || value == nil {
			delete(meta, name)
			continue
		}
		table, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, value)
		}
		if err := goodStrings(name, table); err != nil {
			return err
		}
		meta[name] = table
	}
	return nil
}
