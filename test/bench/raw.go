package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"knarr/test/bench/rig"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
	patchType    = "application/strategic-merge-patch+json"
)

// A raw client sends what was encoded before and decodes no answer: it shares the
// CPUs with the servers, and a typed one needs more of them than they do. Its
// connection is that of client libraries.
type raw struct {
	http         *http.Client
	server, base string
}

func newRaw(c *rig.Cluster) (*raw, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return (&raw{http: client, server: c.Server}).at("/api/v1", "pods"), nil
}

// at is the same client for the namespace's objects of another kind.
func (r *raw) at(version, resource string) *raw {
	return &raw{http: r.http, server: r.server, base: r.server + version + "/namespaces/" + namespace + "/" + resource}
}

// do sends a body of that media type, if there is one, to the base and what is
// added to it, and returns the protobuf answered. Other answers than want are
// errors.
func (r *raw) do(ctx context.Context, method, path, media string, body []byte, want int) ([]byte, error) {
	var from io.Reader
	if body != nil {
		from = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, from)
	if err != nil {
		return nil, err
	}
	req.Header["Accept"] = []string{protobufType}
	if body != nil {
		req.Header["Content-Type"] = []string{media}
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer := make([]byte, max(resp.ContentLength, 0))
	if resp.ContentLength >= 0 {
		_, err = io.ReadFull(resp.Body, answer)
	} else {
		answer, err = io.ReadAll(resp.Body)
	}
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %.300q", method, path, resp.Status, answer)
	}
	return answer, err
}

var coder = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encoded is an object as a body of protobufType.
func encoded(o runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	err := coder.Encode(o, &b)
	return b.Bytes(), err
}

// encodedAll are n objects.
func encodedAll(n int, object func(i int) runtime.Object) ([][]byte, error) {
	all := make([][]byte, n)
	for i := range all {
		var err error
		if all[i], err = encoded(object(i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// withStatus is an encoded pod with that message and one more condition in its
// status. Of two protobuf messages in a row the later one's fields count, and lists
// grow, so that the pod need not be decoded.
func withStatus(body []byte, message string, condition corev1.PodCondition) ([]byte, error) {
	const ofPod, conditions, ofStatus = 3, 2, 3 // fields: status, and in it conditions and message
	if len(body) < len(magic) {
		return nil, fmt.Errorf("no object of protobuf: %q", body)
	}
	var whole runtime.Unknown
	if err := whole.Unmarshal(body[len(magic):]); err != nil {
		return nil, err
	}
	one, err := condition.Marshal()
	if err != nil {
		return nil, err
	}
	status := protowire.AppendBytes(protowire.AppendTag(nil, conditions, protowire.BytesType), one)
	status = protowire.AppendString(protowire.AppendTag(status, ofStatus, protowire.BytesType), message)
	whole.Raw = protowire.AppendBytes(protowire.AppendTag(whole.Raw, ofPod, protowire.BytesType), status)
	out := make([]byte, len(magic)+whole.Size())
	copy(out, magic)
	_, err = whole.MarshalTo(out[len(magic):])
	return out, err
}

// magic begins every object in Kubernetes' protobuf.
const magic = "k8s\x00"
