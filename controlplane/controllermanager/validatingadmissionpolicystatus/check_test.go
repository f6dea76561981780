package validatingadmissionpolicystatus

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"knarr/internal/apitest"
)

func policyOn(resource string, variables []admissionv1.Variable, validations ...admissionv1.Validation) *admissionv1.ValidatingAdmissionPolicy {
	return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		Variables: variables, Validations: validations,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"*"}, Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{resource}}}}}}}}
}

// Expressions are held to the API server's own schemas.
func TestCheck(t *testing.T) {
	s, _ := apitest.New(t)
	from := schemas{s.Client(t).Discovery()}
	for name, c := range map[string]struct {
		policy *admissionv1.ValidatingAdmissionPolicy
		want   []string // "field: part of the warning"
	}{
		"fits":     {policyOn("deployments", nil, admissionv1.Validation{Expression: "object.spec.replicas > 1", MessageExpression: "'n: ' + string(object.spec.replicas)"}), nil},
		"wildcard": {policyOn("*", nil, admissionv1.Validation{Expression: "object.nosuch"}), nil},
		"unknown":  {policyOn("nosuch", nil, admissionv1.Validation{Expression: "object.nosuch"}), nil},
		"type": {policyOn("deployments", nil, admissionv1.Validation{Expression: "object.spec.replicas > '1'", MessageExpression: "'n: ' + object.spec.replicas"}),
			[]string{"spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'",
				"spec.validations[0].messageExpression: found no matching overload for '_+_' applied to '(string, int)'"}},
		"field": {policyOn("deployments", nil, admissionv1.Validation{Expression: "object.nosuch == 1"}),
			[]string{"spec.validations[0].expression: undefined field 'nosuch'"}},
		"variable": {policyOn("deployments", []admissionv1.Variable{{Name: "n", Expression: "object.spec.replicas"}}, admissionv1.Validation{Expression: "variables.n > 1"}, admissionv1.Validation{Expression: "variables.n == 'x'"}),
			[]string{"spec.validations[1].expression: found no matching overload for '_==_' applied to '(int, string)'"}},
	} {
		got, err := check(from, c.policy)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %v %v", name, got, err)
			continue
		}
		for i, w := range got {
			field, part, _ := strings.Cut(c.want[i], ": ")
			if w.FieldRef != field || !strings.Contains(w.Warning, part) {
				t.Errorf("%s: %s: %q\nwant %s", name, w.FieldRef, w.Warning, c.want[i])
			}
		}
	}
}

// The status says what has been checked, and of which generation.
func TestStatus(t *testing.T) {
	s, _ := apitest.New(t)
	client := s.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f := informers.NewSharedInformerFactory(client, 0)
	c := New(f, client)
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	own, end := context.WithCancel(ctx)
	go func() { ended <- c.Run(own) }()
	p := policyOn("deployments", nil, admissionv1.Validation{Expression: "object.spec.replicas > '1'"})
	policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := policies.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if got := e.Object.(*admissionv1.ValidatingAdmissionPolicy); got.Status.ObservedGeneration == 1 {
			if got.Status.TypeChecking == nil || len(got.Status.TypeChecking.ExpressionWarnings) != 1 {
				t.Errorf("%+v", got.Status)
			}
			break
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	cancel()
	f.Shutdown()
}
