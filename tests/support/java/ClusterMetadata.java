import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/**
 * Writes and lists the metadata of a cluster by Kafka's own admin client, as JSON in the words of
 * kbackup/metadata/entities.py. `apply` takes what to make from stdin; `list` prints what is there. Both take a file of
 * client properties; tokens belong to the user that these log in as.
 */
public class ClusterMetadata {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int BATCH = 50;

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (var file = new java.io.FileInputStream(args[1])) {
            properties.load(file);
        }
        try (Admin admin = Admin.create(properties)) {
            if (args[0].equals("apply")) {
                apply(admin, JSON.readTree(System.in));
            } else {
                System.out.println(list(admin));
            }
        }
    }

    static void apply(Admin admin, JsonNode all) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode each : all.path("topics")) {
            Map<Integer, List<Integer>> replicas = new HashMap<>();
            for (JsonNode partition : each.get("replicas")) {
                replicas.put(replicas.size(), JSON.convertValue(partition, List.class));
            }
            topics.add(new NewTopic(each.get("name").asText(), replicas).configs(strings(each.get("configs"))));
        }
        // A request with all of them takes longer than the client waits on a busy machine, and its second try is refused.
        for (int at = 0; at < topics.size(); at += BATCH) {
            admin.createTopics(topics.subList(at, Math.min(at + BATCH, topics.size()))).all().get();
        }
        List<AclBinding> acls = new ArrayList<>();
        for (JsonNode each : all.path("acls")) {
            acls.add(acl(each));
        }
        admin.createAcls(acls).all().get();
        List<UserScramCredentialAlteration> users = new ArrayList<>();
        for (JsonNode each : all.path("scram_users")) {
            var mechanism = ScramMechanism.fromMechanismName(each.get("mechanism").asText());
            var info = new ScramCredentialInfo(mechanism, each.get("iterations").asInt());
            users.add(new UserScramCredentialUpsertion(each.get("user").asText(), info, each.get("password").asText()));
        }
        admin.alterUserScramCredentials(users).all().get();
        applyQuotas(admin, all.path("client_quotas"));
        applyConfigs(admin, all.path("broker_configs"));
        for (JsonNode each : all.path("delegation_tokens")) {
            var renewers = new ArrayList<KafkaPrincipal>();
            for (JsonNode renewer : each.get("renewers")) {
                renewers.add(principal(renewer.asText()));
            }
            admin.createDelegationToken(new CreateDelegationTokenOptions().renewers(renewers)).delegationToken().get();
        }
    }

    static void applyQuotas(Admin admin, JsonNode all) throws Exception {
        List<ClientQuotaAlteration> quotas = new ArrayList<>();
        for (JsonNode each : all) {
            Map<String, String> entity = strings(each.get("entity"));
            List<ClientQuotaAlteration.Op> ops = new ArrayList<>();
            each.get("quotas").properties().forEach(
                op -> ops.add(new ClientQuotaAlteration.Op(op.getKey(), op.getValue().asDouble())));
            quotas.add(new ClientQuotaAlteration(new ClientQuotaEntity(entity), ops));
        }
        admin.alterClientQuotas(quotas).all().get();
    }

    static void applyConfigs(Admin admin, JsonNode all) throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> configs = new HashMap<>();
        for (JsonNode each : all) {
            String broker = each.get("broker").isNull() ? "" : each.get("broker").asText();
            var op = new AlterConfigOp(
                new ConfigEntry(each.get("name").asText(), each.get("value").asText()), AlterConfigOp.OpType.SET);
            configs.computeIfAbsent(
                new ConfigResource(ConfigResource.Type.BROKER, broker), made -> new ArrayList<>()).add(op);
        }
        admin.incrementalAlterConfigs(configs).all().get();
    }

    static ObjectNode list(Admin admin) throws Exception {
        ObjectNode all = JSON.createObjectNode();
        all.put("cluster_id", admin.describeCluster().clusterId().get());
        all.set("topics", topics(admin));
        ArrayNode acls = all.putArray("acls");
        for (AclBinding each : admin.describeAcls(AclBindingFilter.ANY).values().get()) {
            acls.addObject()
                .put("resource", lower(each.pattern().resourceType()))
                .put("name", each.pattern().name())
                .put("pattern", lower(each.pattern().patternType()))
                .put("principal", each.entry().principal())
                .put("host", each.entry().host())
                .put("operation", lower(each.entry().operation()))
                .put("permission", lower(each.entry().permissionType()));
        }
        ArrayNode users = all.putArray("scram_users");
        for (var each : admin.describeUserScramCredentials().all().get().entrySet()) {
            for (ScramCredentialInfo info : each.getValue().credentialInfos()) {
                users.addObject().put("user", each.getKey()).put("mechanism", info.mechanism().mechanismName())
                    .put("iterations", info.iterations());
            }
        }
        ArrayNode quotas = all.putArray("client_quotas");
        for (var each : admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().entrySet()) {
            ObjectNode quota = quotas.addObject();
            quota.set("entity", JSON.valueToTree(each.getKey().entries()));
            quota.set("quotas", JSON.valueToTree(each.getValue()));
        }
        all.set("broker_configs", brokerConfigs(admin));
        all.set("delegation_tokens", tokens(admin));
        return all;
    }

    static ArrayNode topics(Admin admin) throws Exception {
        ArrayNode made = JSON.createArrayNode();
        Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        var resources = names.stream()
            .map(name -> new ConfigResource(ConfigResource.Type.TOPIC, name)).collect(Collectors.toList());
        var configs = admin.describeConfigs(resources).all().get();
        for (TopicDescription each : admin.describeTopics(names).allTopicNames().get().values()) {
            ObjectNode topic = made.addObject().put("name", each.name()).put("id", each.topicId().toString());
            ArrayNode replicas = topic.putArray("replicas");
            each.partitions().forEach(partition -> {
                ArrayNode ids = replicas.addArray();
                partition.replicas().forEach(node -> ids.add(node.id()));
            });
            ObjectNode set = topic.putObject("configs");
            for (ConfigEntry entry : configs.get(new ConfigResource(ConfigResource.Type.TOPIC, each.name())).entries()) {
                if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                    set.put(entry.name(), entry.value());
                }
            }
        }
        return made;
    }

    /** A broker that is down can't be asked; the default of all brokers is asked of any. */
    static ArrayNode brokerConfigs(Admin admin) throws Exception {
        ArrayNode made = JSON.createArrayNode();
        List<String> brokers = new ArrayList<>(List.of(""));
        admin.describeCluster().nodes().get().forEach(node -> brokers.add(node.idString()));
        for (String broker : brokers) {
            var resource = new ConfigResource(ConfigResource.Type.BROKER, broker);
            var wanted = broker.isEmpty() ? ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
                : ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG;
            for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                if (entry.source() == wanted) {
                    ObjectNode config = made.addObject();
                    if (broker.isEmpty()) {
                        config.putNull("broker");
                    } else {
                        config.put("broker", Integer.parseInt(broker));
                    }
                    config.put("name", entry.name()).put("value", entry.value());
                }
            }
        }
        return made;
    }

    static ArrayNode tokens(Admin admin) throws Exception {
        ArrayNode made = JSON.createArrayNode();
        for (DelegationToken each : admin.describeDelegationToken().delegationTokens().get()) {
            var info = each.tokenInfo();
            ObjectNode token = made.addObject().put("id", info.tokenId()).put("owner", info.ownerAsString())
                .put("requester", info.tokenRequesterAsString());
            ArrayNode renewers = token.putArray("renewers");
            info.renewersAsString().forEach(renewers::add);
            token.put("issued_at", info.issueTimestamp()).put("expires_at", info.expiryTimestamp())
                .put("max_at", info.maxTimestamp()).put("hmac", each.hmacAsBase64String());
        }
        return made;
    }

    static AclBinding acl(JsonNode each) {
        return new AclBinding(
            new ResourcePattern(
                ResourceType.fromString(upper(each, "resource")),
                each.get("name").asText(),
                PatternType.fromString(upper(each, "pattern"))),
            new AccessControlEntry(
                each.get("principal").asText(),
                each.get("host").asText(),
                AclOperation.fromString(upper(each, "operation")),
                AclPermissionType.fromString(upper(each, "permission"))));
    }

    static KafkaPrincipal principal(String text) {
        int colon = text.indexOf(':');
        return new KafkaPrincipal(text.substring(0, colon), text.substring(colon + 1));
    }

    static Map<String, String> strings(JsonNode object) {
        Map<String, String> made = new HashMap<>();
        object.properties().forEach(each -> made.put(
            each.getKey(), each.getValue().isNull() ? null : each.getValue().asText()));
        return made;
    }

    static String lower(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    static String upper(JsonNode object, String field) {
        return object.get(field).asText().toUpperCase(Locale.ROOT);
    }
}
