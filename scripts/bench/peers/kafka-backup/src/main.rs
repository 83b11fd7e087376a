//! Run the engine of OSO's kafka-backup: `kafka-backup-engine backup FILE`, `kafka-backup-engine restore FILE`.
//! FILE is the YAML of kafka-backup's own command.

use kafka_backup_core::{backup::BackupEngine, Config, RestoreEngine};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, work, file] = words.as_slice() else {
        return Err("usage: kafka-backup-engine backup|restore FILE".into());
    };
    let config = Config::from_yaml_with_warnings(&std::fs::read_to_string(file)?)?.0;
    match work.as_str() {
        "backup" => BackupEngine::new(config).await?.run().await?,
        "restore" => {
            RestoreEngine::new(config)?.run().await?;
        }
        _ => return Err("usage: kafka-backup-engine backup|restore FILE".into()),
    }
    Ok(())
}
