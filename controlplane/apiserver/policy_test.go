package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// onConfigMaps is what the policies here apply to.
func onConfigMaps() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}}}
}

type (
	validatingSpec = admissionv1.ValidatingAdmissionPolicySpec
	mutatingSpec   = admissionv1.MutatingAdmissionPolicySpec
)

func (w *world) policy(name string, spec validatingSpec, bindings ...admissionv1.ValidatingAdmissionPolicyBindingSpec) {
	w.t.Helper()
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = onConfigMaps()
	}
	api := w.admin.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(w.ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	w.must(err)
	if len(bindings) == 0 {
		bindings = append(bindings, admissionv1.ValidatingAdmissionPolicyBindingSpec{})
	}
	for i, b := range bindings {
		b.PolicyName = name
		if b.ValidationActions == nil {
			b.ValidationActions = []admissionv1.ValidationAction{admissionv1.Deny}
		}
		_, err := api.ValidatingAdmissionPolicyBindings().Create(w.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + string(rune('a'+i))}, Spec: b}, metav1.CreateOptions{})
		w.must(err)
	}
}

func (w *world) unpolicy(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.must(w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(w.ctx, name, metav1.DeleteOptions{}))
		w.must(w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
}

// tryMap creates a ConfigMap, dry.
func (w *world) tryMap(data map[string]string) (*corev1.ConfigMap, error) {
	return w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: data}, metav1.CreateOptions{DryRun: []string{"All"}})
}

func TestValidatingPolicies(t *testing.T) {
	w := newWorld(t)
	one := func(v admissionv1.Validation) validatingSpec {
		return validatingSpec{Validations: []admissionv1.Validation{v}}
	}
	forbidden := metav1.StatusReasonForbidden
	denied := "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-a' denied request: "
	for name, c := range map[string]struct {
		spec validatingSpec
		want string
		code int32
	}{
		"holds":        {one(admissionv1.Validation{Expression: "object.data.a == 'b'"}), "", 0},
		"expression":   {one(admissionv1.Validation{Expression: "object.data.a == 'c'"}), denied + "failed expression: object.data.a == 'c'", 422},
		"message":      {one(admissionv1.Validation{Expression: "false", Message: "never", Reason: &forbidden}), denied + "never", 403},
		"made message": {one(admissionv1.Validation{Expression: "false", Message: "never", MessageExpression: "'a is ' + object.data.a"}), denied + "a is b", 422},
		"bad message":  {one(admissionv1.Validation{Expression: "false", Message: "never", MessageExpression: "string(object.data.z)"}), denied + "never", 422},
		"error":        {one(admissionv1.Validation{Expression: "object.data.z == ''"}), denied + "expression 'object.data.z == ''' resulted in error: no such key: z", 422},
		"old object":   {one(admissionv1.Validation{Expression: "oldObject == null && request.operation == 'CREATE'"}), "", 0},
		"namespace":    {one(admissionv1.Validation{Expression: "namespaceObject.metadata.name == 'default'"}), "", 0},
		"authorizer":   {one(admissionv1.Validation{Expression: "authorizer.requestResource.check('create').allowed()"}), "", 0},
		"variables": {validatingSpec{
			Variables:   []admissionv1.Variable{{Name: "a", Expression: "object.data.a"}, {Name: "twice", Expression: "variables.a + variables.a"}},
			Validations: []admissionv1.Validation{{Expression: "variables.twice == 'bb'"}, {Expression: "variables.twice == 'b'", MessageExpression: "string(variables.twice)"}}}, denied + "bb", 422},
		"ignored": {validatingSpec{FailurePolicy: new(admissionv1.Ignore), Validations: []admissionv1.Validation{{Expression: "object.data.z == ''"}}}, "", 0},
		"condition is false": {validatingSpec{MatchConditions: []admissionv1.MatchCondition{{Name: "c", Expression: "request.name == 'y'"}},
			Validations: []admissionv1.Validation{{Expression: "false"}}}, "", 0},
		"condition fails": {validatingSpec{MatchConditions: []admissionv1.MatchCondition{{Name: "c", Expression: "object.data.z == ''"}},
			Validations: []admissionv1.Validation{{Expression: "true"}}}, denied + "expression 'object.data.z == ''' resulted in error: no such key: z", 422},
		"too expensive": {one(admissionv1.Validation{Expression: "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, a+b+c+d+e+f+g > 0)))))))"}),
			"resulted in error: operation cancelled: actual cost limit exceeded", 422},
		"excluded": {validatingSpec{MatchConstraints: func() *admissionv1.MatchResources {
			m := onConfigMaps()
			m.ExcludeResourceRules = []admissionv1.NamedRuleWithOperations{{ResourceNames: []string{"x"}, RuleWithOperations: m.ResourceRules[0].RuleWithOperations}}
			return m
		}(), Validations: []admissionv1.Validation{{Expression: "false"}}}, "", 0},
		"no such parameters": {validatingSpec{ParamKind: &admissionv1.ParamKind{APIVersion: "example.com/v1", Kind: "Odd"}, Validations: []admissionv1.Validation{{Expression: "true"}}},
			"ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Odd'", 422},
	} {
		w.policy("p", c.spec)
		_, err := w.tryMap(map[string]string{"a": "b"})
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if refused(t, err, c.want); err != nil && err.(apierrors.APIStatus).Status().Code != c.code {
			t.Errorf("%s: %+v", name, err)
		}
		w.unpolicy("p")
	}
}

func TestPolicyActions(t *testing.T) {
	w := newWorld(t)
	w.policy("p", validatingSpec{Validations: []admissionv1.Validation{{Expression: "false", Message: "careful"}},
		AuditAnnotations: []admissionv1.AuditAnnotation{{Key: "k", ValueExpression: "'v'"}}},
		admissionv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}},
		admissionv1.ValidatingAdmissionPolicyBindingSpec{MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"no": "such"}}}})
	var got warnings
	cfg := w.Config()
	cfg.WarningHandler = &got
	client, err := kubernetes.NewForConfig(cfg)
	w.must(err)
	_, err = client.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	w.must(err)
	if want := (warnings{"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-a': careful"}); !slices.Equal(got, want) {
		t.Errorf("warnings %q", got)
	}
	// A policy in force is held to its newest spec.
	p, err := w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(w.ctx, "p", metav1.GetOptions{})
	w.must(err)
	p.Spec.Validations[0].Expression = "true"
	_, err = w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(w.ctx, p, metav1.UpdateOptions{})
	w.must(err)
	got = nil
	_, err = client.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "y"}}, metav1.CreateOptions{})
	if w.must(err); len(got) != 0 {
		t.Errorf("warnings %q", got)
	}
}

func TestPolicyParameters(t *testing.T) {
	w := newWorld(t)
	param := func(name, most string) {
		_, err := w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"limit": "yes"}},
			Data: map[string]string{"most": most}}, metav1.CreateOptions{})
		w.must(err)
	}
	param("limit", "3")
	limit := func() validatingSpec {
		return validatingSpec{ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			Validations: []admissionv1.Validation{{Expression: "int(object.data.n) <= int(params.data.most)", MessageExpression: "'most: ' + params.data.most"}}}
	}
	deny, allow := new(admissionv1.DenyAction), new(admissionv1.AllowAction)
	bind := func(r *admissionv1.ParamRef) admissionv1.ValidatingAdmissionPolicyBindingSpec {
		return admissionv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: r}
	}
	for name, c := range map[string]struct {
		ref  *admissionv1.ParamRef
		want string
	}{
		"by name":     {&admissionv1.ParamRef{Name: "limit", ParameterNotFoundAction: deny}, "denied request: most: 3"},
		"elsewhere":   {&admissionv1.ParamRef{Name: "limit", Namespace: "kube-system", ParameterNotFoundAction: deny}, "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		"none needed": {&admissionv1.ParamRef{Name: "nosuch", ParameterNotFoundAction: allow}, ""},
		"selected":    {&admissionv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"limit": "yes"}}, ParameterNotFoundAction: deny}, "denied request: most: 3"},
		"selects none": {&admissionv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"limit": "no"}}, ParameterNotFoundAction: deny},
			"no params found for policy binding with `Deny` parameterNotFoundAction"},
		"left out": {nil, "resulted in error"},
	} {
		w.policy("p", limit(), bind(c.ref))
		_, err := w.tryMap(map[string]string{"n": "4"})
		if c.want != "" {
			refused(t, err, c.want)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.unpolicy("p")
	}
	spec := limit()
	spec.ParamKind.Kind, spec.ParamKind.APIVersion = "Namespace", "v1"
	w.policy("p", spec, bind(&admissionv1.ParamRef{Name: "default", Namespace: "default", ParameterNotFoundAction: deny}))
	_, err := w.tryMap(nil)
	refused(t, err, "paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
}

// Who may not read a kind may not let a policy read it for him.
func TestPolicyParameterAccess(t *testing.T) {
	w := newWorld(t)
	_, err := w.admin.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "policies"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.admin.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "policies"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "bob"}}}, metav1.CreateOptions{})
	w.must(err)
	bob := w.as("bob").AdmissionregistrationV1()
	policy := func(kind string) error {
		_, err := bob.ValidatingAdmissionPolicies().Create(w.ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p-" + strings.ToLower(kind)},
			Spec: validatingSpec{ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: kind}, MatchConstraints: onConfigMaps(),
				Validations: []admissionv1.Validation{{Expression: "true"}}}}, metav1.CreateOptions{DryRun: []string{"All"}})
		return err
	}
	if err := policy("ConfigMap"); err != nil {
		t.Error(err)
	}
	refused(t, policy("Secret"), `must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`)
	binding := func(policy string, ref *admissionv1.ParamRef) error {
		_, err := bob.ValidatingAdmissionPolicyBindings().Create(w.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy, ParamRef: ref, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{DryRun: []string{"All"}})
		return err
	}
	named := &admissionv1.ParamRef{Name: "a", ParameterNotFoundAction: new(admissionv1.DenyAction)}
	refused(t, binding("nosuch", named), `unable to get policy nosuch to determine minimum required permissions`)
	w.policy("s", validatingSpec{ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "Secret"}, Validations: []admissionv1.Validation{{Expression: "true"}}})
	refused(t, binding("s", named), `does not have "get" permission on the object referenced by paramRef`)
	if err := binding("s", nil); err != nil {
		t.Error(err)
	}
}

func (w *world) mutating(name string, spec mutatingSpec) {
	w.t.Helper()
	spec.MatchConstraints = onConfigMaps()
	if spec.ReinvocationPolicy == "" {
		spec.ReinvocationPolicy = admissionv1.NeverReinvocationPolicy
	}
	api := w.admin.AdmissionregistrationV1()
	_, err := api.MutatingAdmissionPolicies().Create(w.ctx, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	w.must(err)
	_, err = api.MutatingAdmissionPolicyBindings().Create(w.ctx, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-a"},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}, metav1.CreateOptions{})
	w.must(err)
}

func applying(expression string) admissionv1.Mutation {
	return admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: expression}}
}

func patching(expression string) admissionv1.Mutation {
	return admissionv1.Mutation{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: expression}}
}

func TestMutatingPolicies(t *testing.T) {
	w := newWorld(t)
	w.mutating("a", mutatingSpec{ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy,
		Mutations: []admissionv1.Mutation{applying("Object{data: {'count': string(size(object.data))}}")}})
	w.mutating("b", mutatingSpec{Variables: []admissionv1.Variable{{Name: "v", Expression: "object.data.a + '!'"}}, Mutations: []admissionv1.Mutation{
		patching("[JSONPatch{op: 'add', path: '/data/b', value: variables.v}]"),
		applying("Object{metadata: Object.metadata{labels: {'seen': object.data.b == 'b!' ? 'yes' : 'no'}}}")}})
	cm, err := w.tryMap(map[string]string{"a": "b"})
	w.must(err)
	// b made a look again, at three keys.
	if cm.Data["b"] != "b!" || cm.Labels["seen"] != "yes" || cm.Data["count"] != "3" {
		t.Errorf("%v %v", cm.Data, cm.Labels)
	}
	w.mutating("c", mutatingSpec{Mutations: []admissionv1.Mutation{patching("[JSONPatch{op: 'remove', path: '/data/nosuch'}]")}})
	_, err = w.tryMap(map[string]string{"a": "b"})
	refused(t, err, "policy 'c' with binding 'c-a' denied request: JSON Patch: ")
}

// What is stored in an older version is shown in the one served.
func TestStoredVersion(t *testing.T) {
	w := newWorld(t)
	watcher, err := w.admin.AdmissionregistrationV1().MutatingAdmissionPolicies().Watch(w.ctx, metav1.ListOptions{})
	w.must(err)
	defer watcher.Stop()
	w.mutating("a", mutatingSpec{Mutations: []admissionv1.Mutation{applying("Object{data: {'a': 'b'}}")}})
	if e := <-watcher.ResultChan(); e.Object.(*admissionv1.MutatingAdmissionPolicy).Name != "a" {
		t.Errorf("%+v", e)
	}
}
