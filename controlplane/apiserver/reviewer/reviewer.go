// Package reviewer asks webhooks that answer TokenReviews and
// SubjectAccessReviews. It reads the kubeconfigs that name them and writes
// nothing.
package reviewer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A Client reaches one webhook.
type Client struct{ rest *rest.RESTClient }

const (
	// timeout bounds one attempt unless the configuration says otherwise.
	timeout = 30 * time.Second
	// maxAnswer bounds what a webhook may answer.
	maxAnswer = 1 << 20
)

// backoff is between attempts, upstream's.
var backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

var codecs = sync.OnceValue(func() serializer.CodecFactory {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, authenticationv1beta1.AddToScheme, authorizationv1.AddToScheme, authorizationv1beta1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // fixed lists of types
		}
	}
	return serializer.NewCodecFactory(s)
})

// New reaches the webhook of a kubeconfig's current context by reviews of
// version. An attempt takes no longer than limit; 0 is 30 s.
func New(kubeconfig string, version schema.GroupVersion, limit time.Duration) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	cfg.Timeout, cfg.QPS = timeout, -1
	if limit > 0 {
		cfg.Timeout = limit
	}
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codecs().LegacyCodec(version)})
	cfg.Wrap(func(t http.RoundTripper) http.RoundTripper { return bounded{t} })
	c, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{c}, nil
}

// Ask posts review and reads answer, with more attempts as long as what went
// wrong may pass.
func (c *Client) Ask(ctx context.Context, review, answer runtime.Object) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		last = c.rest.Post().Body(review).Do(ctx).Into(answer)
		if retryable(last) {
			return false, nil
		}
		return last == nil, last
	})
	switch {
	case last != nil:
		return last
	case err != nil:
		return fmt.Errorf("webhook call failed: %s", err.Error())
	}
	return nil
}

// retryable says that an error may not come again.
func retryable(err error) bool {
	if err == nil {
		return false
	}
	_, later := apierrors.SuggestsClientDelay(err)
	return later || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

// bounded reads no more of an answer than maxAnswer.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

var errLarge = errors.New("the webhook's answer is too large")

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
