import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.DelegationTokenNotFoundException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/**
 * Changes a cluster's metadata in every way that an admin client can.
 *   change PLAIN SASL      all of it; prints the id and the HMAC (base64) of the token that stays. SASL is the address
 *                          where user "b o%b" logs in by SCRAM. The cluster has the brokers 1 and 2.
 *   unregister PLAIN ID    forget a broker
 *   unregister-controller PLAIN ID    forget a controller
 *   token SASL ID HMAC     log in by a token, and print the cluster's id
 */
class MetadataChanges {
    static final String USER = "b o%b";
    static final String PASSWORD = "p a\u00e4ss%w\u00f6rd";

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "change" -> change(arguments[1], arguments[2]);
            case "unregister" -> {
                try (Admin admin = Admin.create(properties(arguments[1]))) {
                    admin.unregisterBroker(Integer.parseInt(arguments[2])).all().get();
                }
            }
            case "unregister-controller" -> {
                try (Admin admin = Admin.create(properties(arguments[1]))) {
                    admin.unregisterController(Integer.parseInt(arguments[2])).all().get();
                }
            }
            case "token" -> {
                Properties login = login(arguments[1], arguments[2], arguments[3], "SCRAM-SHA-256", true);
                try (Admin admin = Admin.create(login)) {
                    System.out.println(admin.describeCluster().clusterId().get());
                }
            }
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void change(String plain, String sasl) throws Exception {
        try (Admin admin = Admin.create(properties(plain))) {
            topics(admin);
            // only Kafka 4 has configs of groups, and a level for their protocol
            boolean groups = admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version");
            configs(admin, groups);
            quotas(admin);
            acls(admin);
            users(admin);
            if (groups) {
                features(admin);
            }
        }
        transaction(plain);
        try (Admin admin = Admin.create(login(sasl, USER, PASSWORD, "SCRAM-SHA-512", false))) {
            tokens(admin);
        }
    }

    private static void topics(Admin admin) throws Exception {
        NewTopic grown = new NewTopic("grown", 2, (short) 2).configs(Map.of("retention.ms", "123456"));
        NewTopic moved = new NewTopic("moved", Map.of(0, List.of(1), 1, List.of(2)));
        NewTopic deleted = new NewTopic("deleted", 3, (short) 1).configs(Map.of("retention.ms", "99"));
        admin.createTopics(List.of(grown, moved, deleted)).all().get();
        admin.createPartitions(Map.of("grown", NewPartitions.increaseTo(5))).all().get();
        Optional<NewPartitionReassignment> target = Optional.of(new NewPartitionReassignment(List.of(2, 1)));
        admin.alterPartitionReassignments(Map.of(new TopicPartition("moved", 0), target)).all().get();
        while (!admin.listPartitionReassignments().reassignments().get().isEmpty()) {
            Thread.sleep(50);
        }
        admin.deleteTopics(List.of("deleted")).all().get();
    }

    private static void configs(Admin admin, boolean groups) throws Exception {
        Map<ConfigResource, List<String[]>> all = new HashMap<>();
        all.put(new ConfigResource(ConfigResource.Type.TOPIC, "grown"),
            List.of(new String[] {"cleanup.policy", "compact,delete"}, new String[] {"retention.ms", null}));
        all.put(new ConfigResource(ConfigResource.Type.BROKER, ""),
            List.of(new String[] {"log.cleaner.threads", "2"}, new String[] {"message.max.bytes", "2000000"}));
        all.put(new ConfigResource(ConfigResource.Type.BROKER, "1"), List.<String[]>of(new String[] {"log.cleaner.threads", "1"}));
        all.put(new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "latency"),
            List.of(new String[] {"interval.ms", "5000"}, new String[] {"metrics", "*"}));
        if (groups) {
            all.put(new ConfigResource(ConfigResource.Type.GROUP, "group \u00e9"),
                List.<String[]>of(new String[] {"consumer.session.timeout.ms", "50000"}));
        }
        admin.incrementalAlterConfigs(operations(all)).all().get();
        ConfigResource metrics = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "gone");
        admin.incrementalAlterConfigs(operations(Map.of(metrics, List.<String[]>of(new String[] {"metrics", "*"})))).all().get();
        admin.incrementalAlterConfigs(operations(Map.of(metrics, List.<String[]>of(new String[] {"metrics", null})))).all().get();
    }

    private static Map<ConfigResource, java.util.Collection<AlterConfigOp>> operations(
            Map<ConfigResource, List<String[]>> all) {
        Map<ConfigResource, java.util.Collection<AlterConfigOp>> operations = new HashMap<>();
        all.forEach((resource, pairs) -> {
            List<AlterConfigOp> made = new ArrayList<>();
            for (String[] pair : pairs) {
                AlterConfigOp.OpType type = pair[1] == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
                made.add(new AlterConfigOp(new ConfigEntry(pair[0], pair[1]), type));
            }
            operations.put(resource, made);
        });
        return operations;
    }

    private static void quotas(Admin admin) throws Exception {
        List<Map<String, String>> entities = new ArrayList<>();
        for (String user : new String[] {USER, null}) {
            Map<String, String> both = new HashMap<>();
            both.put("user", user);
            entities.add(new HashMap<>(both));
            both.put("client-id", "app 1");
            entities.add(both);
        }
        for (String ip : new String[] {"10.0.0.1", null}) {
            Map<String, String> entity = new HashMap<>();
            entity.put("ip", ip);
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entity),
                List.of(new ClientQuotaAlteration.Op("connection_creation_rate", 12.0))))).all().get();
        }
        for (Map<String, String> entity : entities) {
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entity),
                List.of(new ClientQuotaAlteration.Op("request_percentage", 12.5),
                    new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all().get();
        }
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entities.get(0)),
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null))))).all().get();
    }

    private static void acls(Admin admin) throws Exception {
        AccessControlEntry entry = new AccessControlEntry("User:" + USER, "10.0.0.1", AclOperation.READ, AclPermissionType.ALLOW);
        AccessControlEntry none = new AccessControlEntry("User:*", "*", AclOperation.ALL, AclPermissionType.DENY);
        AclBinding gone = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "gone", PatternType.LITERAL), entry);
        AccessControlEntry token = new AccessControlEntry("User:x", "*", AclOperation.DESCRIBE_TOKENS, AclPermissionType.ALLOW);
        admin.createAcls(List.of(gone,
            new AclBinding(new ResourcePattern(ResourceType.TOPIC, "gro", PatternType.PREFIXED), entry),
            new AclBinding(new ResourcePattern(ResourceType.GROUP, "*", PatternType.LITERAL), none),
            new AclBinding(new ResourcePattern(ResourceType.USER, "User:y", PatternType.LITERAL), token))).all().get();
        admin.deleteAcls(List.of(gone.toFilter())).all().get();
    }

    private static void users(Admin admin) throws Exception {
        ScramCredentialInfo strong = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192);
        ScramCredentialInfo usual = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion(USER, strong, PASSWORD),
            new UserScramCredentialUpsertion("alice", usual, "alice's"),
            new UserScramCredentialUpsertion("gone", usual, "-"))).all().get();
        admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion("gone", ScramMechanism.SCRAM_SHA_256))).all().get();
    }

    /** The level of a feature, down and up again. */
    private static void features(Admin admin) throws Exception {
        for (FeatureUpdate update : List.of(
                new FeatureUpdate((short) 0, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE),
                new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE))) {
            admin.updateFeatures(Map.of("group.version", update), new UpdateFeaturesOptions()).all().get();
        }
    }

    private static void transaction(String plain) {
        Properties properties = properties(plain);
        properties.put("transactional.id", "one");
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            producer.initTransactions();
        }
    }

    private static void tokens(Admin admin) throws Exception {
        CreateDelegationTokenOptions options = new CreateDelegationTokenOptions().renewers(
            List.of(new org.apache.kafka.common.security.auth.KafkaPrincipal("User", "renewer \u00e9")));
        DelegationToken token = admin.createDelegationToken(options).delegationToken().get();
        DelegationToken gone = admin.createDelegationToken().delegationToken().get();
        whenKnown(() -> admin.renewDelegationToken(token.hmac()).expiryTimestamp());
        ExpireDelegationTokenOptions now = new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1);
        whenKnown(() -> admin.expireDelegationToken(gone.hmac(), now).expiryTimestamp());
        System.out.println(token.tokenInfo().tokenId() + " " + Base64.getEncoder().encodeToString(token.hmac()));
    }

    /** The controller knows a new token a moment after it has answered. */
    private static void whenKnown(Supplier<KafkaFuture<Long>> change) throws Exception {
        while (true) {
            try {
                change.get().get();
                return;
            } catch (ExecutionException error) {
                if (!(error.getCause() instanceof DelegationTokenNotFoundException)) {
                    throw error;
                }
                Thread.sleep(50);
            }
        }
    }

    private static Properties properties(String address) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        return properties;
    }

    private static Properties login(String address, String user, String password, String mechanism, boolean token) {
        Properties properties = properties(address);
        properties.put("security.protocol", "SASL_PLAINTEXT");
        properties.put("sasl.mechanism", mechanism);
        properties.put("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\""
            + user + "\" password=\"" + password + "\"" + (token ? " tokenauth=\"true\"" : "") + ";");
        return properties;
    }
}
