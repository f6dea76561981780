package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A Webhook takes lists of events elsewhere.
type Webhook struct {
	client  *http.Client
	url     string
	backoff time.Duration
}

// webhookTime bounds one attempt, upstream's bound.
const webhookTime = 30 * time.Second

// NewWebhook reads the kubeconfig file that says where the webhook is. backoff
// is how long it waits before it tries again the first time.
func NewWebhook(file string, backoff time.Duration) (*Webhook, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, err
	}
	config.Timeout = webhookTime
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect as %s says: %w", file, err)
	}
	return &Webhook{client, config.Host, backoff}, nil
}

// attempts is how often one list is sent at most, upstream's number.
const attempts = 5

// Send sends events, and again when that may help.
func (w *Webhook) Send(ctx context.Context, events []*auditv1.Event) error {
	list := auditv1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: auditv1.SchemeGroupVersion.String()}}
	for _, ev := range events {
		list.Items = append(list.Items, *ev)
	}
	body, err := json.Marshal(&list)
	if err != nil {
		return err
	}
	wait := w.backoff
	for i := 1; ; i++ {
		again, err := w.post(ctx, body)
		if err == nil || !again || i == attempts {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
		wait += wait / 2
	}
}

// Process sends one event while its request waits.
func (w *Webhook) Process(ev *auditv1.Event) bool {
	ctx, cancel := context.WithTimeout(context.Background(), webhookTime)
	defer cancel()
	return w.Send(ctx, []*auditv1.Event{ev}) == nil
}

func (w *Webhook) post(ctx context.Context, body []byte) (again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.client.Do(r)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode >= http.StatusMultipleChoices {
		return resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests, fmt.Errorf("the webhook answered %s", resp.Status)
	}
	return false, nil
}
